-- Index keys that expire by themselves and that no job, set or stream names, so that `obliterate` finds them without a
-- search: `P:temporary` has the part of the key after `P` as member and its expiry (epoch ms) as score.

local PRUNED_A_CALL = 20

-- Set the time to live of such a key, ms, and index it.
G.expire_temporary = function(q, suffix, now, ttl)
  redis.call('PEXPIRE', q.P .. suffix, G.int(math.max(1, ttl)))
  G.record_temporary(q, suffix, now, ttl)
end

-- ttl: ms. To be called whenever the key's time to live is set. The index expires with its last member.
G.record_temporary = function(q, suffix, now, ttl)
  redis.call('ZADD', q.temporary, 'GT', G.int(now + ttl), suffix)
  local over = redis.call('ZRANGEBYSCORE', q.temporary, '-inf', G.int(now), 'LIMIT', 0, PRUNED_A_CALL)
  if #over > 0 then redis.call('ZREM', q.temporary, unpack(over)) end
  local _, last = G.member_at(q.temporary, -1)
  if last then redis.call('PEXPIRE', q.temporary, G.int(math.max(1, tonumber(last) - now))) end
end
