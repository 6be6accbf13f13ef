-- Report an attempt whose handler waits for the job's children. No attempt is counted.
--   {6, id, entry, fence, processed_on, keep [, data]}     keep: the job's retention, should it fail
-- Status G.WAITING_CHILDREN, or G.FAILED if a child has failed whose policy fails its parent. If no child is open (any
-- more), the job becomes ready immediately.

local F = G.finishing
local ID, FENCE, PROCESSED_ON, KEEP, DATA = 2, 4, 5, 6, 7
local ENDED = { ['waiting-children'] = true, waiting = true, prioritized = true, ['group-waiting'] = true, failed = true }

G.finish_kinds[6] = function(b, row)
  local id = row[ID]
  local key = b.q.J .. id
  local h = F.read(key, 'groupKey', 'orderingSeq', 'childFailed', 'revoked')
  local rejected = G.check_attempt(h, row[FENCE], row[PROCESSED_ON], ENDED)
  if rejected then return rejected end
  if h[6] then return F.fail_at_once(b, row, h[4], h[6], 'ChildFailedError', row[KEEP]) end
  if h[7] == '1' then return F.fail_at_once(b, row, h[4], 'revoked', 'JobRevokedError', row[KEEP]) end
  G.flows.wait(b.q, id, b.now)
  redis.call('HSET', key, 'state', 'waiting-children')
  if row[DATA] then redis.call('HSET', key, 'data', row[DATA]) end
  redis.call('HDEL', key, 'stalledCount', 'suspectLimit')
  F.leave_source(b, row)
  -- An ordered job keeps its slot while it waits.
  if h[4] and G.count_of(h[5]) == 0 then F.leave_group(b, id, h[4]) end
  if not b.quiet then G.emit(b.q.events, 'waiting-children', id) end
  if G.flows.open(b.q, id) <= 0 then G.flows.release(b.q, id, b.now) end
  return G.WAITING_CHILDREN
end
