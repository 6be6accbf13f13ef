-- Check fencing tokens. Each activation has a token: the job's activation counter (`fence`) and the `processedOn` it
-- wrote. A worker-side call with an outdated token changes nothing (docs/reference/functions.md, "Attempts and
-- fencing").

G.OK, G.ALREADY, G.GONE, G.STALE, G.RETRYING, G.FAILED, G.RELEASED = 0, 1, 2, 3, 4, 5, 6
G.REVOKED, G.DELAYED, G.LIMITED = 7, 8, 9
G.SUSPENDED = 11
G.WAITING_CHILDREN = 10

-- fence, processed_on: the token of the attempt. ended: states that it may have led to, for a call that is repeated
-- because its reply was lost. state, job_fence, job_processed_on: of the record. Return nil if the attempt is current,
-- else the status to reply.
G.check_attempt = function(fence, processed_on, ended, state, job_fence, job_processed_on)
  if not state then return G.GONE end
  if tonumber(job_fence or '') ~= fence then return G.STALE end
  if state == 'active' and tonumber(job_processed_on or '') == processed_on then return nil end
  -- Completing leaves `processedOn` unchanged. After FLUSHALL another job may have the same id and fence.
  if state == 'completed' and tonumber(job_processed_on or '') ~= processed_on then return G.STALE end
  if ended[state] and job_processed_on then return G.ALREADY end
  return G.STALE
end
