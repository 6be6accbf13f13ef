-- Retry a failed attempt automatically: the job is delayed by the backoff that its worker computed, and runs again.
-- (features/requeue starts a failed job again on request.)
local F = G.finishing
local ID = 2

-- row: a failed attempt (core/finish.lua, kind 2). attempts: attempts made, this one included, as text.
-- stalled: the attempt ended while its worker was alive, so earlier stalls are no longer counted.
F.retry = function(b, key, row, attempts, priority, stalled)
  local due = G.scheduled_score(priority, b.now + row[10])
  redis.call('ZADD', b.q.scheduled, due, row[ID])
  redis.call('HSET', key, 'state', 'delayed', 'attemptsMade', attempts, 'failedReason', row[6],
    'failedType', row[7], 'stacktrace', row[8], 'processedOn', b.now_text)
  if row[12] then G.bump(key, 'fallbackIndex') end
  if stalled then redis.call('HDEL', key, 'stalledCount', 'suspectLimit') end
  F.leave_source(b, row)
  if not b.quiet then
    G.emit(b.q.events, 'retrying', row[ID], 'failedReason', row[6], 'attemptsMade', attempts, 'delay', G.int(row[10]))
  end
  return G.RETRYING
end
