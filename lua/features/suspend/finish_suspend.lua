-- Report an attempt that waits for an external signal. No attempt is counted.
--   7 {kind, id, entry, fence, processed_on, reason, timeout ms or 0 [, keep]}
-- Status G.SUSPENDED, or G.FAILED if the job was revoked meanwhile: no fetch would notice it. Applies to jobs from
-- lists and from the stream. It counts as progress: stalls are reset.

local F = G.finishing
local ROW = G.rows.suspended
local ENDED = { suspended = true, waiting = true, prioritized = true, failed = true, ['group-waiting'] = true }

G.finish_kinds[G.report_kinds.suspended] = function(b, row)
  local q, id = b.q, row[ROW.id]
  local rejected, group, sequence, revoked = F.current(q.J .. id, row, ENDED, 'groupKey', 'orderingSeq', 'revoked')
  if rejected then return rejected end
  if revoked == '1' then return F.fail_at_once(b, row, group, 'revoked', 'JobRevokedError', row[ROW.keep]) end
  local S = G.suspension -- defined after this file is read
  S.enter(q, id, b.now, row[ROW.reason], row[ROW.timeout])
  F.interrupt(b, row, group, sequence)
  if not b.quiet then G.emit(q.events, 'suspended', id) end
  local signal = S.undelivered(q, id)
  if signal then S.resume(q, id, b.now, G.job_of(q, id), signal, b.quiet) end
  return G.SUSPENDED
end
