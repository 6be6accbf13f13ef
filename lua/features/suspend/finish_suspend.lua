-- Report an attempt that waits for an external signal. No attempt is counted.
--   {7, id, entry, fence, processed_on, reason, timeout ms or 0 [, keep]}
-- Status G.SUSPENDED, or G.FAILED if the job was revoked meanwhile: no fetch would notice it. Applies to jobs from
-- lists and from the stream. It counts as progress: stalls are reset.

local F = G.finishing
local ID, FENCE, PROCESSED_ON, REASON, TIMEOUT, KEEP = 2, 4, 5, 6, 7, 8
local ENDED = { suspended = true, waiting = true, prioritized = true, failed = true, ['group-waiting'] = true }

G.finish_kinds[7] = function(b, row)
  local q, id = b.q, row[ID]
  local h = F.read(q.J .. id, 'groupKey', 'orderingSeq', 'revoked')
  local rejected = G.check_attempt(h, row[FENCE], row[PROCESSED_ON], ENDED)
  if rejected then return rejected end
  if h[6] == '1' then return F.fail_at_once(b, row, h[4], 'revoked', 'JobRevokedError', row[KEEP]) end
  local S = G.suspension -- defined after this file is read
  S.enter(q, id, b.now, row[REASON], row[TIMEOUT])
  redis.call('HDEL', q.J .. id, 'stalledCount', 'suspectLimit')
  F.leave_source(b, row)
  -- An ordered job keeps its slot while it is suspended.
  if h[4] and G.count_of(h[5]) == 0 then F.leave_group(b, id, h[4]) end
  if not b.quiet then G.emit(q.events, 'suspended', id) end
  local signal = S.undelivered(q, id)
  if signal then S.resume(q, id, b.now, G.job_of(q, id), signal, b.quiet) end
  return G.SUSPENDED
end
