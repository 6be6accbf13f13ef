-- discard: give up the remaining attempts of an active job.
-- KEYS 1 meta   ARGV 1 id   -> 'ok' | 'gone' | the state that does not allow it (only `active` does)
-- The attempt continues. If it fails or stalls, the job fails without another one. Workers of version 0.1.0 and of peers
-- ignore the field `discarded`. Bound: constant.

G.export('discard', { 'allow-oom' }, G.for_operators(function(q, r)
  local state = redis.call('HGET', q.J .. r.id, 'state')
  if not state then return 'gone' end
  if state ~= 'active' then return state end
  redis.call('HSET', q.J .. r.id, 'discarded', '1')
  return 'ok'
end))
