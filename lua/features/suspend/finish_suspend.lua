-- Report an attempt that waits for an external signal. No attempt is counted.
--   7 {kind, id, entry, fence, processed_on, reason, timeout ms or 0 [, keep [, awaited, returned, step]]}
-- awaited: the job is delayed until the timeout, and a signal of this name makes it ready; returned: how many signals of
-- this name the handler has got; step: it is stored (features/steps/steps.lua).
-- Status G.SUSPENDED, or G.FAILED if the job was revoked meanwhile: no fetch would notice it. Applies to jobs from
-- lists and from the stream. It counts as progress: stalls are reset.

local F = G.finishing
local ROW = G.rows.suspended
local ENDED = { suspended = true, delayed = true, waiting = true, prioritized = true, failed = true, ['group-waiting'] = true }

G.finish_kinds[G.report_kinds.suspended] = function(b, row)
  local q, id = b.q, row[ROW.id]
  local rejected, group, sequence, revoked, priority, rank = F.current(q.J .. id, row, ENDED, 'groupKey', 'orderingSeq',
    'revoked', 'priority', 'rank')
  if rejected then return rejected end
  if revoked == '1' then return F.fail_at_once(b, row, group, 'revoked', 'JobRevokedError', row[ROW.keep]) end
  local S = G.suspension -- defined after this file is read
  local awaited = G.given(row[ROW.awaited])
  if awaited then
    local due = G.clamped_time(b.now + row[ROW.timeout])
    F.delay(b, id, due, priority, rank)
    redis.call('HSET', q.J .. id, 'delay', G.int(due - b.now), 'notBefore', '0')
    G.steps.await(q, id, row[ROW.fence], awaited)
    if row[ROW.step] then G.steps.store(q, id, b.now, row[ROW.step]) end
    S.write(q, id, 'delayed', b.now, row[ROW.reason], row[ROW.timeout])
  else
    S.enter(q, id, b.now, row[ROW.reason], row[ROW.timeout])
  end
  F.interrupt(b, row, group, sequence)
  if not b.quiet then G.emit(q.events, 'suspended', id) end
  local signal
  if awaited then
    signal = S.has_more(q, id, awaited, row[ROW.returned]) and awaited
  else
    signal = S.undelivered(q, id)
  end
  if signal then S.resume(q, id, b.now, G.job_of(q, id), signal, b.quiet) end
  return G.SUSPENDED
end
