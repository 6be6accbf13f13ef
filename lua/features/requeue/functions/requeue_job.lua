-- requeue_job: requeue a failed job with all its attempts (features/requeue/requeue.lua).
-- KEYS 1 meta   ARGV 1 id 2 (optional) '1': a completed job too
-- -> 'ok' | 'gone' | the state that does not allow it (only `failed` does, and `completed` if given)
--    | 'owned <state> <id>': the other job has its deduplication id
-- An expired job fails again. Bound: constant.

G.export('requeue_job', {}, G.for_operators(function(q, r)
  local id = r.id
  local h = G.job_of(q, id)
  if not h.state then return 'gone' end
  local completed = h.state == 'completed' and r.completed == '1'
  if h.state ~= 'failed' and not completed then return h.state end
  local owner = G.requeue_failed(q, id, G.now(q), h)
  if owner then return 'owned ' .. h.state .. ' ' .. owner end
  redis.call('ZREM', completed and q.completed or q.failed, id)
  G.emit(q.events, 'retried', id)
  return 'ok'
end))
