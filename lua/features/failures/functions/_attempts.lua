-- Record why attempts and jobs failed (docs/learn/failures.md). Only functions of this library do that: the wire
-- library writes what glide-mq writes.
-- Field `failedAttempts` of a job: one line per failed attempt, oldest first, each the JSON array
-- G.rows.failed_attempt. Field `failureReason`: `<reason>|<finishedOn>`, valid only with this finishedOn, since a peer
-- that fails the job later does not write it.
-- P:meta, `attemptHistory`: `<attempts>|<traceback bytes>|<bytes>`, the bounds; 0 attempts = no history.

G.failures = {}
local F = G.failures
local ROW = G.rows.failed

F.EXPLICIT, F.EXHAUSTED, F.TIMEOUT, F.STALLED = 'explicit_fail', 'max_attempts_exceeded', 'timeout', 'stalled'
F.EXPIRED, F.WORKER_LOST, F.CHILD, F.UNKNOWN = 'ttl_expired', 'worker_lost', 'child_failed', 'unknown'
F.CANCELLED = 'cancelled'
F.REASONS = { F.EXPLICIT, F.EXHAUSTED, F.TIMEOUT, F.STALLED, F.EXPIRED, F.WORKER_LOST, F.CHILD, F.CANCELLED, F.UNKNOWN }
local KNOWN = G.positions(F.REASONS)

local BY_TYPE = { JobTimeoutError = F.TIMEOUT, LeaseExpiredError = F.STALLED, SandboxCrashError = F.WORKER_LOST,
  JobRevokedError = F.CANCELLED, ChildFailedError = F.CHILD, GroupRateLimitError = F.UNKNOWN }
-- Reasons of jobs whose lock expired at a gateway, as bunqueue gives them.
F.LAST_ATTEMPT, F.LAST_STALL = 'Lock expired (max attempts reached)', 'Lock expired (max stalls reached)'
local BY_TEXT = { ['job stalled more than maxStalledCount'] = F.STALLED, expired = F.EXPIRED, revoked = F.CANCELLED,
  ['Suspend timeout exceeded'] = F.TIMEOUT, [F.LAST_ATTEMPT] = F.EXHAUSTED, [F.LAST_STALL] = F.STALLED }
local DEFAULTS = { attempts = 20, traceback = 4096, bytes = 65536 }
local ERROR_BYTES, NAME_BYTES = 1024, 256
local LINES_MAX, TRACES_MAX = 1000, 16

-- ------------------------------------------------------------------ bounds

-- Return the bounds of the queue's histories.
local function read_bounds(q)
  local attempts, traceback, bytes = G.match(G.pcall('HGET', q.meta, 'attemptHistory'), '^(%d+)|(%d+)|(%d+)$')
  return attempts and { attempts = math.min(G.count_of(attempts), LINES_MAX), traceback = G.count_of(traceback),
    bytes = G.count_of(bytes) } or DEFAULTS
end

-- Return the first `most` bytes of UTF-8 text, without an incomplete last character.
local function head(text, most)
  if #text <= most then return text end
  local cut = string.sub(text, 1, most)
  local following = string.byte(text, most + 1)
  if following >= 128 and following < 192 then cut = string.gsub(cut, '[\192-\255]?[\128-\191]*$', '') end
  return cut
end

-- Return the last `most` bytes of UTF-8 text, without an incomplete first character.
local function tail(text, most)
  if #text <= most then return text end
  return (string.gsub(string.sub(text, -most), '^[\128-\191]+', ''))
end

-- Return the last traceback of a JSON array of them. Only the last one is decoded: between two of them is `","`, which
-- no JSON text contains, since its quotes are escaped.
local function last_traceback(stacktrace, most)
  if most == 0 or type(stacktrace) ~= 'string' or #stacktrace <= 4 then return '' end
  local from = 2
  for _ = 1, TRACES_MAX do
    local at = string.find(stacktrace, '","', from, true)
    if not at then break end
    from = at + 2
  end
  local texts = G.json('[' .. string.sub(stacktrace, from))
  local last = texts[#texts]
  return type(last) == 'string' and tail(last, most) or ''
end

-- Remove the oldest lines until the text is within the bounds.
local function bounded(text, limits)
  local starts = { 1 }
  for _ = 1, LINES_MAX do
    local at = string.find(text, '\n', starts[#starts], true)
    if not at then break end
    starts[#starts + 1] = at + 1
  end
  for i = math.max(1, #starts - limits.attempts + 1), #starts do
    if #text - starts[i] < limits.bytes or i == #starts then return string.sub(text, starts[i]) end
  end
  return text
end

-- ------------------------------------------------------------------ attempts

-- Return the history with one more attempt; nil if the queue keeps none. history: the field, or false or nil.
-- attempt: number, started, ended, worker, reason, error, failed_type; stacktrace: JSON array of tracebacks, or nil
F.with_attempt = function(q, history, attempt, stacktrace)
  local limits = G.once(q, 'attempt_bounds', read_bounds)
  if limits.attempts == 0 then return nil end
  attempt.error = head(attempt.error or '', ERROR_BYTES)
  attempt.kind = head(attempt.kind or '', NAME_BYTES)
  attempt.worker = head(attempt.worker or '', NAME_BYTES)
  attempt.traceback = last_traceback(stacktrace, limits.traceback)
  local line = cjson.encode(G.new.failed_attempt(attempt))
  if #line > limits.bytes then
    attempt.traceback = ''
    line = cjson.encode(G.new.failed_attempt(attempt))
  end
  return bounded(history and history ~= '' and history .. '\n' .. line or line, limits)
end

-- Return the reason of a failed attempt. row: its report (core/finish.lua). is_final: no attempt follows. discarded: an
-- operator discarded the attempts that were left.
F.reason_of_report = function(row, is_final, discarded)
  local reason = BY_TYPE[row[ROW.failed_type]]
  if reason then return reason end
  return is_final and row[ROW.permanent] ~= 1 and not discarded and F.EXHAUSTED or F.EXPLICIT
end

F.reason_of_type = function(failed_type) return BY_TYPE[failed_type] or F.UNKNOWN end

-- The text of a parent whose child failed names the child (features/flows/parents.lua).
F.reason_of_text = function(text)
  return BY_TEXT[text] or (string.find(text, '^child .+ failed: ') or string.find(text, '^dependency .+ failed: ')) and F.CHILD
    or F.UNKNOWN
end

-- Return whether the worker has ended without closing, or only stopped renewing locks.
F.reason_of_stall = function(q, consumer)
  if consumer == '' or G.is_registered(q, consumer) then return F.STALLED end
  return F.WORKER_LOST
end

-- Record that an attempt ended because its lock was not renewed, and the job runs again. h: processedOn of the record.
F.stalled = function(q, id, h, now, consumer)
  local key = q.J .. id
  local made, history = unpack(redis.call('HMGET', key, 'attemptsMade', 'failedAttempts'))
  local text = F.with_attempt(q, history, {
    number = G.count_of(made) + 1, started = G.count_of(h.processedOn), ended = now, worker = consumer,
    reason = F.reason_of_stall(q, consumer), error = 'the lock of the job was not renewed', kind = '',
  })
  if text then redis.call('HSET', key, 'failedAttempts', text) end
end

-- ------------------------------------------------------------------ failed jobs

-- Return the fields to write into the record of a job that has failed, flat.
F.fields = function(reason, now_text, history)
  if history then return { 'failureReason', reason .. '|' .. now_text, 'failedAttempts', history } end
  return { 'failureReason', reason .. '|' .. now_text }
end

-- Record the failure of a job that no worker reported (core/terminal.lua). attempt: {worker, started} if an attempt was
-- running. Return the history for its dead-letter entry, and the fields for its record.
F.ended = function(q, id, now, text, attempt)
  local name, made, history = unpack(redis.call('HMGET', q.J .. id, 'name', 'attemptsMade', 'failedAttempts'))
  local reason = F.reason_of_text(text)
  history = F.with_attempt(q, history, {
    number = G.count_of(made) + (attempt and 1 or 0), started = attempt and G.count_of(attempt.started) or 0, ended = now,
    worker = attempt and attempt.worker or '', error = text, kind = '',
    reason = attempt and F.reason_of_stall(q, attempt.worker) or reason,
  })
  F.count(q, reason, name or '', now)
  return history, F.fields(reason, G.int(now), history)
end

-- Return the reason of a failed job. reason: its `failureReason`. Builds up to 0.1 and peers have none of their own for a
-- cancelled job.
F.reason_of_job = function(reason, finished_on, failed_reason, failed_type)
  local known, at = G.match(reason, '^([%l_]+)|(%d+)$')
  local is_cancelled = failed_reason == 'revoked' and (not G.given(failed_type) or failed_type == 'JobRevokedError')
  if known and KNOWN[known] and at == finished_on and not is_cancelled then return known end
  return F.reason_of_text(failed_reason or '')
end
