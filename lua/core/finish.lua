-- Report finished attempts, many per call. Rows, by kind (processed_on = the `now` of the reply that returned the job):
--   1 {kind, id, entry, fence, processed_on, returnvalue [, keep]}                             completed
--   8 the same, of a job that was fetched as a plain one (core/fetch_plain.lua)
--   2 {…, processed_on, reason, failed_type, stacktrace, limit, backoff [, keep [, next_fallback [, permanent]]]}
--     failed; next_fallback: the next attempt uses the next fallback; permanent: 1 = not retried, even if attempts are left
--   3 {kind, id, entry, fence, processed_on}                                              released, no attempt counted
--   9 the same, of a job that no client has got: it returns to the front of its source
--   4 delayed (finish_delay.lua)   5 its group is rate limited (finish_group.lua)
--   6 waits for its children (finish_children.lua)   7 is suspended (finish_suspend.lua)
-- keep: 0 or absent = keep the job, 1 = delete it immediately, 2 = the same if no peer can have written a key of the job,
-- {count, age_s} = retention, -count = the same without an age.
-- Status per row: G.OK (completed), G.RETRYING, G.FAILED, G.RELEASED, G.DELAYED, G.LIMITED, G.WAITING_CHILDREN,
-- G.SUSPENDED, G.ALREADY, G.GONE, G.STALE.
-- For each row, the writes that can fail come first and the hash comes second: a job whose new place cannot be
-- written stays active.

local F = G.finishing
local REPORT, DONE, FAILURE, RETENTION = G.rows.report, G.rows.completed, G.rows.failed, G.rows.retention
local KIND, ID, ENTRY, FENCE, PROCESSED_ON = REPORT.kind, REPORT.id, REPORT.entry, REPORT.fence, REPORT.processed_on
local RESULT, KEEP = DONE.returnvalue, DONE.keep
local EVENT_RESULT_MAX = 1048576 -- a larger result is not in the event: about a thousand events are kept
-- Positions of the fields read of a job that was completed; the last one only in queues that record timelines.
local AT = G.positions({ 'state', 'fence', 'processedOn', 'groupKey', 'parentId', 'parentIds', 'schedulerName', 'timeline' })
-- Fields read of a plain job that was completed. It has no group, parent or scheduler: these are written with a job that
-- is not plain (docs/reference/data-model.md, "Plain jobs").
local PLAIN_AT = G.positions({ 'state', 'fence', 'processedOn', 'parentIds', 'timeline' })
local PLAIN_PARENTS, PLAIN_TIMELINE = PLAIN_AT.parentIds, PLAIN_AT.timeline
-- The same in both.
local STATE, TOKEN, STARTED = AT.state, AT.fence, AT.processedOn
local GROUP, PARENT, PARENTS, SCHEDULER, TIMELINE = AT.groupKey, AT.parentId, AT.parentIds, AT.schedulerName, AT.timeline
local COMPLETED = { completed = true }
local FAILED = { failed = true, delayed = true, waiting = true, prioritized = true, ['group-waiting'] = true }
local RELEASED = {}
local ROWS_MAX = 1000
local DELETED = { true, true }
local TRIMMED_FROM = 16 -- entries of a call from which trimming the stream costs less than deleting each
local PENDING_ENTRY = G.rows.pending_entry
local REVOKED = 'JobRevokedError' -- type of the error that ends the attempt of a revoked job

-- Writes collected for the end of the call: acknowledged entries, jobs without one, index members, metric sums,
-- retention rules.
local function batch(q, fetching, quiet)
  return {
    q = q, call = redis.call, pcall = redis.pcall, now = fetching.now, fetching = fetching, now_text = fetching.now_text,
    quiet = quiet, J = q.J, events = q.events, timeline = fetching.timeline, started = false, started_text = false,
    trims = false, entries = {}, list_jobs = {}, completed = {}, failed = {}, completed_n = 0, completed_ms = 0, failed_n = 0,
    failed_ms = 0, keep_completed = {}, keep_failed = {}, removed = {}, plain = {}, gone = {},
    results = G.results.settings(q, not G.numbers_results(fetching.settings)),
  }
end

local function leave_source(b, row)
  if row[ENTRY] == '' then
    b.list_jobs[#b.list_jobs + 1] = row[ID]
  else
    b.entries[#b.entries + 1] = row[ENTRY]
  end
end

-- Return whether the status of a report says that the report has ended its attempt.
G.has_ended = function(status) return status ~= G.ALREADY and status ~= G.GONE and status ~= G.STALE end

-- Check the token of a reported attempt. Return the status to reply, nil if the attempt is current, and the requested
-- fields of the job's record. A key that is not a hash is a job that is gone.
G.read_attempt = function(key, fence, processed_on, ended, ...)
  local h = G.pcall('HMGET', key, 'state', 'fence', 'processedOn', ...)
  return G.check_attempt(fence, processed_on, ended, unpack(h)), unpack(h, 4)
end

local function current(key, row, ended, ...)
  return G.read_attempt(key, row[FENCE], row[PROCESSED_ON], ended, ...)
end

-- Remember a retention rule, to be applied once. The jobs of a call mostly have the same.
local function note_rule(b, rule, keep)
  local rules = b[rule]
  if type(keep) == 'number' then
    if rules.newest == keep then return end
    rules.newest, keep = keep, { -keep, 0 }
  end
  local last = rules[#rules]
  if last and last[RETENTION.count] == keep[RETENTION.count] and last[RETENTION.age] == keep[RETENTION.age] then return end
  rules[#rules + 1] = keep
end

-- Add the job to the index of a terminal state, or mark it for deletion at the end of the call: its final record is
-- not written then. Decided per job, written once per call.
local function index(b, zset, members, id, keep, rule)
  if DELETED[keep] then
    local ids = (keep == 1 or G.may_have_side_keys(b.fetching.settings)) and b.removed or b.plain
    ids[#ids + 1] = id
    b.gone[id] = true
    return
  end
  if not members.seen then
    -- Write the first member immediately: an index of a foreign type must fail before any record is changed.
    members.seen = true
    redis.call('ZADD', zset, b.now_text, id)
  else
    members[#members + 1] = b.now_text
    members[#members + 1] = id
  end
  if keep and keep ~= 0 then note_rule(b, rule, keep) end
end

-- Free the job's slot in its group, if it has one. final: the record of a completed or deleted job needs no `slot`
-- field.
local function leave_group(b, id, group, final)
  if not group then return end
  -- A current attempt was activated by this library, which gave it a slot.
  G.groups.free_unread(b.q, group)
  if not final then redis.call('HSET', b.q.J .. id, 'slot', '0') end
  G.add_ready_group(b.fetching, group)
end

-- The attempt ends without an outcome. That is progress: stalls are reset. An ordered job keeps its slot meanwhile.
-- data, own_keys: the job's new data, if it is given.
F.interrupt = function(b, row, group, sequence, data, own_keys)
  if data then G.set_data(b.J .. row[ID], data, own_keys) end
  redis.call('HDEL', b.J .. row[ID], 'stalledCount', 'suspectLimit')
  leave_source(b, row)
  if group and G.count_of(sequence) == 0 then leave_group(b, row[ID], group) end
end

-- Delay an active job until `due`.
F.delay = function(b, id, due, priority, rank)
  if rank then
    G.place(b.q, b.now, { id = id, priority = priority, due = due, rank = rank })
  elseif not G.fair.delay(b.q, id, due) then
    redis.call('ZADD', b.q.scheduled, G.scheduled_score(priority, due), id)
  end
end

-- Return the text of the time when the attempt was fetched: all jobs of a fetch have the same.
local function started_text(b, row)
  local started = row[PROCESSED_ON]
  if b.started ~= started then b.started, b.started_text = started, G.time_text(started) end
  return b.started_text
end

-- before: the timeline in the job's record.
local function write_completed(b, key, id, result, before)
  local timeline = b.timeline and G.timeline(b.q, id, before, 'completed', b.now, G.REPORTER)
  if timeline then
    b.call('HSET', key, 'state', 'completed', 'returnvalue', result, 'finishedOn', b.now_text, 'timeline', timeline)
  else
    b.call('HSET', key, 'state', 'completed', 'returnvalue', result, 'finishedOn', b.now_text)
  end
end

-- One trim of the events per call is enough, and not every call needs one.
local function emit_completed(b, id, result)
  if #result > EVENT_RESULT_MAX then
    G.emit(b.events, 'completed', id)
  elseif b.trims then
    G.emit(b.events, 'completed', id, 'returnvalue', result)
  else
    local reply = b.pcall('XADD', b.events, '*', 'event', 'completed', 'jobId', id, 'returnvalue', result)
    if reply.err then G.raise_denied(reply) end
  end
end

-- Write the completion of a job whose attempt is current. before: the timeline in its record. links: the fields of the
-- record of a job that may have a group, a scheduler or parents; nil = it has none. Hot: few calls of others.
local function finish_completed(b, key, row, before, links)
  local id, result, keep, members, entry = row[ID], row[RESULT], row[KEEP], b.completed, row[ENTRY]
  if not members.seen or keep and keep ~= 0 then
    index(b, b.q.completed, members, id, keep, 'keep_completed')
  else
    local n = #members
    members[n + 1], members[n + 2] = b.now_text, id
  end
  if links and (links[PARENT] or links[PARENTS]) then G.flows.child_ended(b.q, id, G.flows.COMPLETED, result, b.now) end
  if not DELETED[keep] then write_completed(b, key, id, result, before) end
  if b.results then G.results.append(b.q, b.results, id, G.results.COMPLETED, b.now_text, not DELETED[keep]) end
  if entry == '' then leave_source(b, row) else b.entries[#b.entries + 1] = entry end
  if links then
    if links[GROUP] then leave_group(b, id, links[GROUP], true) end
    if links[SCHEDULER] then G.scheduler_job_ended(b.q, links[SCHEDULER], id, b.now) end
  end
  b.completed_n = b.completed_n + 1
  b.completed_ms = b.completed_ms + b.now - row[PROCESSED_ON]
  if not b.quiet then emit_completed(b, id, result) end
  return G.OK
end

local function complete(b, row)
  local key, h = b.J .. row[ID]
  if b.timeline then
    h = b.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'groupKey', 'parentId', 'parentIds', 'schedulerName',
      'timeline')
  else
    h = b.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'groupKey', 'parentId', 'parentIds', 'schedulerName')
  end
  local token, fence = h[TOKEN], row[FENCE]
  -- Most attempts are current, and the first of their job. The others, and errors, are read again.
  if h[STATE] ~= 'active' or h[STARTED] ~= started_text(b, row)
    or (token ~= '1' or fence ~= 1) and tonumber(token) ~= fence then
    local rejected = current(key, row, COMPLETED)
    if rejected then return rejected end
  end
  return finish_completed(b, key, row, h[TIMELINE], h)
end

-- Complete a job that was fetched as a plain one, or as one with a fair key and no other rare option. Every surprise
-- takes the path of `complete`.
local function complete_plain(b, row)
  local key, fence, h = b.J .. row[ID], row[FENCE]
  if b.timeline then
    h = b.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'parentIds', 'timeline')
  else
    h = b.pcall('HMGET', key, 'state', 'fence', 'processedOn', 'parentIds')
  end
  local token = h[TOKEN]
  if h[STATE] ~= 'active' or h[STARTED] ~= started_text(b, row) or h[PLAIN_PARENTS]
    or (token ~= '1' or fence ~= 1) and tonumber(token) ~= fence then
    return complete(b, row)
  end
  return finish_completed(b, key, row, h[PLAIN_TIMELINE])
end

-- Record the failed attempt of a report. attempt: number, reason, error, kind. history: of the record. Return the
-- new history; nil = the queue keeps none.
local function record_attempt(b, row, history, attempt, stacktrace)
  attempt.started, attempt.ended, attempt.worker = row[PROCESSED_ON], b.now, b.fetching.consumer
  return G.failures.with_attempt(b.q, history, attempt, stacktrace)
end

-- Record the failure of the job. failure: reason, kind, name, and its attempt (attempts, why, history, stacktrace).
-- Return the history, and the fields for the record.
local function record_failure(b, row, failure)
  G.failures.count(b.q, failure.why, failure.name or '', b.now)
  local history = record_attempt(b, row, failure.history, {
    number = failure.attempts, reason = failure.why, error = failure.reason, kind = failure.kind,
  }, failure.stacktrace)
  return history, G.failures.fields(failure.why, b.now_text, history)
end

-- Fail the job finally. The variable arguments are further fields of its record.
local function fail_finally(b, row, group, failure, keep, ...)
  local reason, kind = failure.reason, failure.kind
  local history, fields = record_failure(b, row, failure)
  G.dead_letter(b.q, row[ID], kind == REVOKED and 'revoked' or 'failed', reason, row[FENCE], history)
  index(b, b.q.failed, b.failed, row[ID], keep, 'keep_failed')
  G.flows.child_ended(b.q, row[ID], G.flows.FAILED, reason, b.now)
  if not DELETED[keep] then
    redis.call('HSET', b.q.J .. row[ID], 'state', 'failed', 'failedReason', reason, 'failedType', kind,
      'finishedOn', b.now_text, ...)
    redis.call('HSET', b.q.J .. row[ID], unpack(fields))
    G.note_reported(b.q, row[ID], 'failed', b.now)
  end
  if b.results then G.results.append(b.q, b.results, row[ID], G.results.FAILED, b.now_text, not DELETED[keep]) end
  leave_source(b, row)
  leave_group(b, row[ID], group, DELETED[keep])
  if kind ~= REVOKED then -- cancelled is not failed
    b.failed_n = b.failed_n + 1
    b.failed_ms = b.failed_ms + b.now - row[PROCESSED_ON]
  end
  if not b.quiet then G.emit(b.q.events, 'failed', row[ID], 'failedReason', reason) end
  return G.FAILED
end

-- Fail the job even if attempts are left: its attempt ended with a signal.
local function fail_at_once(b, row, group, reason, kind, keep)
  local made, name, history = unpack(redis.call('HMGET', b.q.J .. row[ID], 'attemptsMade', 'name', 'failedAttempts'))
  return fail_finally(b, row, group, {
    reason = reason, kind = kind, name = name, history = history, attempts = G.count_of(made) + 1,
    why = G.failures.reason_of_type(kind),
  }, keep)
end

-- The record of a failed attempt that is retried: the history with it, nil = none is kept.
local function record_retried(b, row, attempts, history)
  return record_attempt(b, row, history, {
    number = attempts, reason = G.failures.reason_of_report(row, false), error = row[FAILURE.reason],
    kind = row[FAILURE.failed_type],
  }, row[FAILURE.stacktrace])
end

local function fail(b, row)
  local key = b.q.J .. row[ID]
  local rejected, made, priority, group, scheduler, stalls, suspect_limit, name, history, rank, discarded = current(
    key, row, FAILED, 'attemptsMade', 'priority', 'groupKey', 'schedulerName', 'stalledCount', 'suspectLimit', 'name',
    'failedAttempts', 'rank', 'discarded')
  if rejected then return rejected end
  local attempts, limit = G.count_of(made) + 1, row[FAILURE.limit]
  if limit > 0 and attempts < limit and not discarded then
    history = record_retried(b, row, attempts, history)
    return F.retry(b, key, row, G.int(attempts), priority, stalls or suspect_limit, history, rank)
  end
  if scheduler then G.scheduler_job_ended(b.q, scheduler, row[ID], b.now) end
  return fail_finally(b, row, group, {
    reason = row[FAILURE.reason], kind = row[FAILURE.failed_type], name = name, history = history, attempts = attempts,
    why = G.failures.reason_of_report(row, true, discarded), stacktrace = row[FAILURE.stacktrace],
  }, row[FAILURE.keep], 'attemptsMade', G.int(attempts), 'stacktrace', row[FAILURE.stacktrace],
    'processedOn', b.now_text)
end

-- Release the job. It gets a new token immediately, so that a later report of this attempt is rejected.
local function release(b, row, to_front)
  local q, id = b.q, row[ID]
  local rejected = current(q.J .. id, row, RELEASED)
  if rejected then return rejected end
  local g = G.return_job(q, id, b.now, G.job_of(q, id), to_front)
  leave_source(b, row)
  if g then G.add_ready_group(b.fetching, g.name) end
  return G.RELEASED
end

local FINISH, KINDS = G.finish_kinds, G.report_kinds
FINISH[KINDS.completed], FINISH[KINDS.failed], FINISH[KINDS.released] = complete, fail, release
FINISH[KINDS.completed_plain] = complete_plain
FINISH[KINDS.returned] = function(b, row) return release(b, row, true) end
F.current, F.leave_source, F.fail_at_once = current, leave_source, fail_at_once

-- Return the first entry id after `entry`; nil if its number is too large for exact arithmetic.
local function after(entry)
  local time, number = string.match(entry, '^(%d+%-)(%d+)$')
  return number and #number < 15 and time .. G.int(tonumber(number) + 1) or nil
end

-- Acknowledge and delete the entries of finished attempts. Deleting an entry searches its node of the stream, which costs
-- more than all other writes of a plain job, so the stream is trimmed up to the first pending entry: what is before it
-- was delivered, and is in no worker. All entries must have been pending, so the group has delivered what is before
-- them. If this does not delete exactly as many as were acknowledged, each is deleted.
local function delete_entries(q, entries)
  local n = #entries
  if n < TRIMMED_FROM then return G.ack_entries(q, entries) end
  if G.pcall('XACK', q.stream, G.GROUP, unpack(entries)) == n then
    local pending = G.pcall('XPENDING', q.stream, G.GROUP, '-', '+', 1)
    local first = G.first(pending)
    local kept = first and first[PENDING_ENTRY.id] or not pending.err and after(entries[n])
    if kept and redis.pcall('XTRIM', q.stream, 'MINID', '=', kept) == n then return end
  end
  G.pcall('XDEL', q.stream, unpack(entries))
end

-- Apply each rule once.
local function apply_rules(q, zset, rules, now)
  local applied = {}
  for i = 1, #rules do
    local rule = rules[i][RETENTION.count] .. ':' .. rules[i][RETENTION.age]
    if not applied[rule] then
      applied[rule] = true
      G.retain(q, zset, rules[i], now)
    end
  end
end

local function write(b, no_metrics)
  local q = b.q
  delete_entries(q, b.entries)
  G.untrack_list_jobs(q, b.list_jobs)
  if #b.completed > 0 then redis.call('ZADD', q.completed, unpack(b.completed)) end
  if #b.failed > 0 then redis.call('ZADD', q.failed, unpack(b.failed)) end
  if #b.removed > 0 then G.purge(q, b.removed) end
  if #b.plain > 0 then G.delete_records(q, b.plain) end
  if b.results then G.results.left(q, #b.removed + #b.plain) end
  if #b.keep_completed > 0 then apply_rules(q, q.completed, b.keep_completed, b.now) end
  if #b.keep_failed > 0 then apply_rules(q, q.failed, b.keep_failed, b.now) end
  if not no_metrics then G.metrics_of_call(q, b) end
end

-- rows: finished attempts, at most ROWS_MAX. Return their statuses in order; groups with free slots are added to
-- `fetching`.
G.finish = function(q, fetching, rows, quiet, no_metrics)
  local statuses = {}
  if #rows == 0 then return statuses end
  if #rows > ROWS_MAX then error('too many finished rows: ' .. #rows) end
  local b = batch(q, fetching, quiet)
  local trimming = not quiet and G.trims_events(b.now, #rows) and #rows or 0
  -- A failing row ends the call after the changes of the other rows are written. When the rows are reported again,
  -- those return G.ALREADY.
  local ok, failure = pcall(function()
    local gone = b.gone
    for i = 1, #rows do
      local row = rows[i]
      if i == trimming then b.trims = true end
      statuses[i] = gone[row[ID]] and G.GONE or FINISH[row[KIND]](b, row)
    end
  end)
  write(b, no_metrics)
  if not ok then error(failure, 0) end
  return statuses
end
