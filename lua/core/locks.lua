-- Acquire, release and renew token locks with a time to live.

G.lock = function(key, token, ttl)
  return redis.call('SET', key, token, 'NX', 'PX', ttl) and 1 or 0
end

G.unlock = function(key, token)
  if redis.call('GET', key) ~= token then return 0 end
  return redis.call('UNLINK', key)
end

G.renew = function(key, token, ttl)
  if redis.call('GET', key) ~= token then return 0 end
  return redis.call('PEXPIRE', key, ttl)
end
