-- Acquire, release and renew token locks with a time to live.

G.lock = function(key, token, ttl)
  return redis.call('SET', key, token, 'NX', 'PX', ttl) and 1 or 0
end

-- The same for a key whose locks all have this ttl: one that lasts longer is from before the clock was set back.
G.claim = function(key, token, ttl)
  if redis.call('PTTL', key) > tonumber(ttl) then redis.call('UNLINK', key) end
  return G.lock(key, token, ttl)
end

-- Return whether the holder has the lock, or gets it.
G.holds = function(key, holder, ttl)
  return redis.call('GET', key) == holder or G.lock(key, holder, ttl) == 1
end

G.unlock = function(key, token)
  if redis.call('GET', key) ~= token then return 0 end
  return redis.call('UNLINK', key)
end

G.renew = function(key, token, ttl)
  if redis.call('GET', key) ~= token then return 0 end
  return redis.call('PEXPIRE', key, ttl)
end
