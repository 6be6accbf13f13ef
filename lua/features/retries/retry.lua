-- Retry a failed attempt automatically: the job is delayed by the backoff that its worker computed, and runs again.
-- (features/requeue starts a failed job again on request.)
local F = G.finishing
local ROW = G.rows.failed

local function is_given(number) return number and number ~= 0 end

-- row: a failed attempt (core/finish.lua, kind 2). attempts: attempts made, this one included, as text.
-- stalled: the attempt ended while its worker was alive, so earlier stalls are no longer counted. history: the value of
-- `failedAttempts`, nil = none is kept.
F.retry = function(b, key, row, attempts, priority, stalled, history, rank)
  F.delay(b, row[ROW.id], b.now + row[ROW.backoff], priority, rank)
  redis.call('HSET', key, 'state', 'delayed', 'attemptsMade', attempts, 'failedReason', row[ROW.reason],
    'failedType', row[ROW.failed_type], 'stacktrace', row[ROW.stacktrace], 'processedOn', b.now_text)
  G.note_reported(b.q, row[ROW.id], 'delayed', b.now)
  if history then redis.call('HSET', key, 'failedAttempts', history) end
  if is_given(row[ROW.next_fallback]) then G.bump(key, 'fallbackIndex') end
  if stalled then redis.call('HDEL', key, 'stalledCount', 'suspectLimit') end
  F.leave_source(b, row)
  if not b.quiet then
    G.emit(b.q.events, 'retrying', row[ROW.id], 'failedReason', row[ROW.reason], 'attemptsMade', attempts, 'delay',
      G.int(row[ROW.backoff]))
  end
  return G.RETRYING
end
