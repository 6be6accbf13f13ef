-- set_event_retention: set how many events a queue keeps.   KEYS 1 meta   ARGV 1 packed {count}   -> 1
--   count: 0 = the default, about 1,000. Later events trim the excess.

G.export('set_event_retention', { 'allow-oom' }, function(q, r)
  if r.count == 0 then
    redis.call('HDEL', q.meta, 'maxLenEvents')
  else
    redis.call('HSET', q.meta, 'maxLenEvents', G.int(r.count))
  end
  return 1
end)
