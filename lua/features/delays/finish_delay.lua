-- Report an attempt that delays its job: it neither succeeded nor failed, and no attempt is counted.
--   4 {kind, id, entry, fence, processed_on, delay ms, due epoch ms or 0 [, data, own_keys [, step]]}     `due` has precedence
--     step: it is stored (features/steps/steps.lua)
-- Status G.DELAYED. Applies to jobs from lists and from the stream. It counts as progress: stalls are reset.

local F = G.finishing
local ROW = G.rows.delayed
local ENDED = { delayed = true, waiting = true, prioritized = true, ['group-waiting'] = true }

G.finish_kinds[G.report_kinds.delayed] = function(b, row)
  local id = row[ROW.id]
  local key = b.q.J .. id
  local rejected, priority, group, sequence, rank = F.current(key, row, ENDED, 'priority', 'groupKey', 'orderingSeq',
    'rank')
  if rejected then return rejected end
  local due = row[ROW.due] > 0 and math.max(b.now, row[ROW.due]) or b.now + row[ROW.delay]
  due = G.clamped_time(due)
  local delay = G.int(due - b.now)
  F.delay(b, id, due, priority, rank)
  redis.call('HSET', key, 'state', 'delayed', 'delay', delay, 'notBefore', G.int(row[ROW.due]))
  G.note_reported(b.q, id, 'delayed', b.now)
  F.interrupt(b, row, group, sequence, row[ROW.data], row[ROW.own_keys])
  if row[ROW.step] then G.steps.store(b.q, id, b.now, row[ROW.step]) end
  if not b.quiet then G.emit(b.q.events, 'delay-changed', id, 'delay', delay) end
  return G.DELAYED
end
