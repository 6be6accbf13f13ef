-- set_timeline: turn the timelines of the queue's jobs on or off (_timeline.lua).
-- KEYS 1 meta   ARGV 1 packed {text}   -> 1
-- text: `<sample, in millionths>|<entries>`, false = off
-- Bound: constant.

G.export('set_timeline', { 'allow-oom' }, function(q, r)
  if r.text then redis.call('HSET', q.meta, 'timeline', r.text) else redis.call('HDEL', q.meta, 'timeline') end
  return 1
end)
