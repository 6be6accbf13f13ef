-- keep_events: how many events a queue keeps.   KEYS 1 meta   ARGV 1 packed {count}   -> 1
--   count: 0 = as many as without a word, about a thousand. What is more goes with the events to come.

G.export('keep_events', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  if r[1] == 0 then
    redis.call('HDEL', q.meta, 'maxLenEvents')
  else
    redis.call('HSET', q.meta, 'maxLenEvents', G.int(r[1]))
  end
  return 1
end)
