-- Report finished attempts at messages. Rows and statuses are those of core/finish.lua, kinds 1 to 4. In kind 1,
-- `keep` is 1 to write a record although no result is kept.
-- An outcome affects only its own subscription: the message's hash is not written.
local S = G.subscriptions

local REPORT, DONE, FAILURE, DELAYED = G.rows.report, G.rows.completed, G.rows.failed, G.rows.delayed
local KIND, ID, ENTRY, FENCE, PROCESSED_ON = REPORT.kind, REPORT.id, REPORT.entry, REPORT.fence, REPORT.processed_on
local REVOKED = 'JobRevokedError' -- type of the error that ends a revoked attempt, as in core/finish.lua

local function leave(b, row)
  b.acked[#b.acked + 1] = row[ENTRY]
  if row[FENCE] % 2 == 1 then b.own[#b.own + 1] = row[ENTRY] end
end

local function complete(b, row)
  local result = row[DONE.returnvalue]
  if row[DONE.keep] == 1 then
    S.write_record(b.q, row[ID], b.group, 0, 'state', 'completed', 'returnvalue', result, 'finishedOn', b.now_text)
  end
  leave(b, row)
  b.completed_n, b.completed_ms = b.completed_n + 1, b.completed_ms + b.now - row[PROCESSED_ON]
  if not b.quiet then
    G.pcall('XADD', b.q.events, '*', 'event', 'completed', 'jobId', row[ID], 'returnvalue', result,
      'subscription', b.group)
  end
  return G.OK
end

local function schedule_retry(b, row, due)
  redis.call('ZADD', b.q.scheduled, G.scheduled_score(0, due), row[ID] .. '||' .. b.group)
  leave(b, row)
end

local function fail(b, row)
  local q, id, limit, wait = b.q, row[ID], row[FAILURE.limit], row[FAILURE.backoff]
  local reason, failed_type = row[FAILURE.reason], row[FAILURE.failed_type]
  local key = S.record_key(q, id, b.group)
  if not G.exists(q, id) then
    leave(b, row)
    S.report_trimmed(q, b.group, id, row[ENTRY])
    return G.GONE
  end
  local attempts = G.bump(key, 'a')
  local retried = limit > 0 and attempts < limit
  S.write_record(q, id, b.group, retried and wait or 0, 'state', retried and 'delayed' or 'failed', 'failedReason', reason,
    'failedType', failed_type, 'stacktrace', row[FAILURE.stacktrace], 'finishedOn', retried and '' or b.now_text)
  redis.call('HDEL', key, 'stalled')
  if retried then
    schedule_retry(b, row, b.now + wait)
    if not b.quiet then
      G.emit(q.events, 'retrying', id, 'failedReason', reason, 'attemptsMade', attempts, 'delay', G.int(wait),
        'subscription', b.group)
    end
    return G.RETRYING
  end
  leave(b, row)
  G.dead_message(q, b.group, id, failed_type == REVOKED and 'revoked' or 'failed', reason, row[ENTRY], row[FENCE],
    attempts - 1)
  b.failed_n, b.failed_ms = b.failed_n + 1, b.failed_ms + b.now - row[PROCESSED_ON]
  if not b.quiet then G.emit(q.events, 'failed', id, 'failedReason', reason, 'subscription', b.group) end
  return G.FAILED
end

local function release(b, row)
  if S.release_entry(b.q, b.group, row[ENTRY]) then
    G.wake(b.q, 1)
  else
    S.report_trimmed(b.q, b.group, row[ID], row[ENTRY])
  end
  return G.RELEASED
end

local function delay(b, row)
  local due = row[DELAYED.due] > 0 and math.max(b.now, row[DELAYED.due]) or b.now + row[DELAYED.delay]
  S.write_record(b.q, row[ID], b.group, due - b.now, 'state', 'delayed')
  schedule_retry(b, row, due)
  return G.DELAYED
end

local NUMBERS = G.report_kinds
local KINDS = {
  [NUMBERS.completed] = complete, [NUMBERS.failed] = fail, [NUMBERS.released] = release, [NUMBERS.delayed] = delay,
}

-- Return the statuses of the rows in order.
S.finish = function(q, now, consumer, group, rows, quiet, no_metrics)
  local statuses = {}
  local b = { q = q, now = now, now_text = G.int(now), group = group, quiet = quiet, acked = {}, own = {},
    completed_n = 0, completed_ms = 0, failed_n = 0, failed_ms = 0 }
  for i = 1, #rows do
    local row = rows[i]
    statuses[i] = S.check_attempt(q, group, consumer, row[ID], row[ENTRY], row[FENCE]) or KINDS[row[KIND]](b, row)
  end
  S.ack(q, group, b.acked, b.own)
  if b.completed_n > 0 and not quiet then G.pcall('XTRIM', q.events, 'MAXLEN', '~', G.events_kept(q.events)) end
  if not no_metrics then G.metrics_of_call(q, b) end
  return statuses
end
