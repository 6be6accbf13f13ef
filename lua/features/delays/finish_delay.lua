-- Report an attempt that delays its job: it neither succeeded nor failed, and no attempt is counted.
--   {4, id, entry, fence, processed_on, delay ms, until epoch ms or 0 [, data]}     `until` has precedence
-- Status G.DELAYED. Applies to jobs from lists and from the stream. It counts as progress: stalls are reset.

local F = G.finishing
local ID, FENCE, PROCESSED_ON, DELAY, UNTIL, DATA = 2, 4, 5, 6, 7, 8
local ENDED = { delayed = true, waiting = true, prioritized = true, ['group-waiting'] = true }

G.finish_kinds[4] = function(b, row)
  local id = row[ID]
  local key = b.q.J .. id
  local h = F.read(key, 'priority', 'groupKey', 'orderingSeq')
  local rejected = G.check_attempt(h, row[FENCE], row[PROCESSED_ON], ENDED)
  if rejected then return rejected end
  local due = G.clamped_time(row[UNTIL] > 0 and math.max(b.now, row[UNTIL]) or b.now + row[DELAY])
  local delay = G.int(due - b.now)
  redis.call('ZADD', b.q.scheduled, G.scheduled_score(h[4], due), id)
  redis.call('HSET', key, 'state', 'delayed', 'delay', delay)
  if row[DATA] then redis.call('HSET', key, 'data', row[DATA]) end
  redis.call('HDEL', key, 'stalledCount', 'suspectLimit')
  F.leave_source(b, row)
  -- An ordered job keeps its slot while it is delayed.
  if h[5] and G.count_of(h[6]) == 0 then F.leave_group(b, id, h[5]) end
  if not b.quiet then G.emit(b.q.events, 'delay-changed', id, 'delay', delay) end
  return G.DELAYED
end
