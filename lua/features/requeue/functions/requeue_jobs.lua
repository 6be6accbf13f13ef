-- requeue_jobs: requeue failed or completed jobs, oldest first, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {batch, want, left, total, completed, kept}   -> packed {requeued, left, kept}
-- want: how many more are requested, 0 = all   left: how many ids of the index are still to be checked; -1 at first,
-- then the value of the previous reply; 0 = the end. Jobs that end meanwhile come after these.
-- total: requeued by the previous calls. The last call writes one event for all of them, as peers do (jobId = count).
-- kept: jobs at the start of the index that are not requeued: they are cancelled, or another job has their deduplication id;
-- absent or 0 at first, then the value of the previous reply.
-- completed: absent or false = failed jobs. An id without such a job is removed from the index. Bound: `batch` jobs per call.

-- Return how many jobs were requeued, and how many are kept in the index.
-- requeue_job: requeue a failed job with all its attempts (features/requeue/requeue.lua).
-- KEYS 1 meta   ARGV 1 id 2 (optional) '1': a completed job too
-- -> 'ok' | 'gone' | the state that does not allow it (only `failed` does, and `completed` if given)
--    | 'owned <state> <id>': the other job has its deduplication id
-- An expired job fails again. Bound: constant.

local function requeue(q, id, now, index, state)
  local ok, h = G.attempt(G.job_of, q, id)
  local is_one = ok and h.state == state
  local failure = is_one and state == 'failed' and G.failures.read(q, id)
  if failure and failure.reason == G.failures.CANCELLED then return 0, 1 end
  if is_one and G.requeue_failed(q, id, now, h) then return 0, 1 end
  redis.call('ZREM', index, id)
  return is_one and 1 or 0, 0
end

G.export('requeue_jobs', {}, G.for_operators(function(q, r)
  local batch, want, left, kept, now = r.batch, r.want, r.left, r.kept or 0, G.now(q)
  local index, state = q.failed, 'failed'
  if r.completed then index, state = q.completed, 'completed' end
  if left < 0 then left = redis.call('ZCARD', index) end
  local most = math.min(batch, left, want > 0 and want or batch)
  local ids = most > 0 and redis.call('ZRANGE', index, kept, kept + most - 1) or {}
  local retried = 0
  for _, id in ipairs(ids) do
    local requeued, stays = requeue(q, id, now, index, state)
    retried, kept = retried + requeued, kept + stays
  end
  left = left - #ids
  if #ids == 0 or (want > 0 and retried == want) then left = 0 end
  if left == 0 and r.total + retried > 0 then G.emit(q.events, 'retried', G.int(r.total + retried)) end
  return { retried = retried, left = left, kept = kept }
end))

G.export('requeue_job', {}, G.for_operators(function(q, r) return G.requeue_one(q, r.id, r.completed == '1') end))
