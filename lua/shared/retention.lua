-- What is kept of finished jobs (functions.md section 10), taking every key of a job along.

local PURGE_MAX = 1000

-- Delete jobs with all that belongs to them.
G.purge = function(q, ids)
  for i = 1, #ids do
    redis.call('UNLINK', q.J .. ids[i], G.satellites(q, ids[i]))
  end
end

local function purge_from(q, zset, ids)
  if #ids == 0 then return end
  G.purge(q, ids)
  redis.call('ZREM', zset, unpack(ids))
end

-- keep: nil keeps all; {count, age_seconds} keeps the newest `count` (0 = any number) younger than `age` (0 = any).
G.retain = function(q, zset, keep, now)
  local count, age = keep[1] or 0, keep[2] or 0
  if age > 0 then
    local limit = G.int(now - age * 1000)
    purge_from(q, zset, redis.call('ZRANGEBYSCORE', zset, '-inf', limit, 'LIMIT', 0, PURGE_MAX))
  end
  if count > 0 then
    local excess = redis.call('ZCARD', zset) - count
    if excess > 0 then
      purge_from(q, zset, redis.call('ZRANGE', zset, 0, math.min(excess, PURGE_MAX) - 1))
    end
  end
end
