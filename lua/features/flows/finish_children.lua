-- Report an attempt whose handler waits for the job's children. No attempt is counted.
--   6 {kind, id, entry, fence, processed_on, keep [, data, own_keys [, step]]}     keep: the job's retention, should it
--     fail; step: it is stored (features/steps/steps.lua)
-- Status G.WAITING_CHILDREN, or G.FAILED if a child has failed whose policy fails its parent. If no child is open (any
-- more), the job becomes ready immediately.

local F = G.finishing
local ROW = G.rows.waiting_children
local ENDED = { ['waiting-children'] = true, waiting = true, prioritized = true, ['group-waiting'] = true, failed = true }

G.finish_kinds[G.report_kinds.waiting_children] = function(b, row)
  local id = row[ROW.id]
  local key = b.q.J .. id
  local rejected, group, sequence, child_failed, revoked = F.current(key, row, ENDED, 'groupKey', 'orderingSeq',
    'childFailed', 'revoked')
  if rejected then return rejected end
  local keep = row[ROW.keep]
  if child_failed then return F.fail_at_once(b, row, group, child_failed, 'ChildFailedError', keep) end
  if revoked == '1' then return F.fail_at_once(b, row, group, 'revoked', 'JobRevokedError', keep) end
  G.flows.wait(b.q, id, b.now)
  redis.call('HSET', key, 'state', 'waiting-children')
  if row[ROW.step] then G.steps.store(b.q, id, b.now, row[ROW.step]) end
  G.note_reported(b.q, id, 'waiting-children', b.now)
  F.interrupt(b, row, group, sequence, row[ROW.data], row[ROW.own_keys])
  if not b.quiet then G.emit(b.q.events, 'waiting-children', id) end
  if G.flows.open(b.q, id) <= 0 then G.flows.release(b.q, id, b.now) end
  return G.WAITING_CHILDREN
end
