-- Fetch messages for a subscription: released ones first, then new ones. Messages that do not match it are
-- acknowledged.
local STREAM_ENTRY = G.rows.stream_entry
local PENDING_ENTRY = G.rows.pending_entry
local S = G.subscriptions

local FIELDS = { 'name', 'data', 'opts', 'timestamp', 'priority', 'progress', 'expireAt', 'revoked' }
local AT = G.positions(FIELDS)
local NAME, DATA, OPTS, TIMESTAMP = AT.name, AT.data, AT.opts, AT.timestamp
local PRIORITY, PROGRESS, EXPIRE_AT, REVOKED = AT.priority, AT.progress, AT.expireAt, AT.revoked
local PAGE = 100
local SKIPPED_MAX = 2000 -- entries of other subscriptions read by one call

-- patterns: Lua patterns of subjects, or false for all.
S.fetching = function(now, consumer, group, patterns, start, quiet)
  return { now = now, consumer = consumer, group = group, patterns = patterns, start = start, quiet = quiet,
    jobs = {}, dropped = {}, acked = {}, own = {}, subjects = {}, next_due = -1, bytes = 0, examined = 0 }
end

local function matches(t, subject)
  if not t.patterns then return true end
  local known = t.subjects[subject]
  if known ~= nil then return known end
  known = false
  for _, pattern in ipairs(t.patterns) do
    if string.find(subject, pattern) then
      known = true
      break
    end
  end
  t.subjects[subject] = known
  return known
end

local function acknowledge(t, entry, alone)
  t.acked[#t.acked + 1] = entry
  if alone then t.own[#t.own + 1] = entry end
end

local function drop(t, id, entry, alone, why)
  if alone then t.own[#t.own + 1] = entry end
  G.drop(t, id, entry, why)
end

-- Return why the message must not run; nil if it may.
local function reject_reason(q, h, now)
  if not h[NAME] or not h[DATA] or not h[OPTS] then return 'malformed' end
  if h[REVOKED] == '1' then return 'revoked' end
  if G.is_expired(q, h[EXPIRE_AT], h[TIMESTAMP], now) then return 'expired' end
  return nil
end

local function reject(q, t, id, entry, why, fence)
  S.end_failed(q, t.group, id, why, why, entry, fence, t.now)
  if not t.quiet then G.emit(q.events, why == 'malformed' and 'failed' or why, id, 'subscription', t.group) end
end

-- Fetch one entry that is pending for the consumer.
S.fetch_entry = function(q, t, entry, fields, deliveries)
  local id, subject, only_for = S.parse(fields)
  t.examined = t.examined + 1
  if not id then return drop(t, nil, entry, false, 'a stream entry without a job id') end
  if only_for and only_for ~= t.group then return acknowledge(t, entry, false) end
  local alone = only_for ~= nil
  if not alone and not matches(t, subject) then return acknowledge(t, entry, false) end
  local h = G.pcall('HMGET', q.J .. id, unpack(FIELDS))
  if h.err or not h[NAME] then
    S.report_trimmed(q, t.group, id, entry)
    return drop(t, id, entry, alone, 'the message is gone')
  end
  local why = reject_reason(q, h, t.now)
  if why then
    reject(q, t, id, entry, why, S.fence(deliveries, alone))
    return drop(t, id, entry, alone, why)
  end
  local attempts, stalled, trace, reason, failed_type = false, false, false, nil, nil
  if alone or deliveries > 1 then
    attempts, stalled, trace, reason, failed_type = unpack(redis.call('HMGET', S.record_key(q, id, t.group), 'a',
      'stalled', 'stacktrace', 'failedReason', 'failedType'))
  end
  t.bytes = t.bytes + #h[DATA]
  local fence = S.fence(deliveries, alone)
  local job = G.fetched_job(id, entry, fence, h[NAME], h[DATA], h[OPTS], h[TIMESTAMP], attempts or '0', h[PROGRESS],
    stalled, h[PRIORITY], trace)
  if reason ~= nil then G.add_earlier_run(job, false, false, reason, failed_type) end
  t.jobs[#t.jobs + 1] = job
end

-- Claim a pending entry of another consumer, or of this consumer that does not know it, and fetch it.
S.claim_entry = function(q, t, entry, deliveries)
  local claimed = G.first(redis.call('XCLAIM', q.stream, t.group, t.consumer, 0, entry))
  if claimed then return S.fetch_entry(q, t, entry, claimed[STREAM_ENTRY.fields], deliveries + 1) end
  S.report_trimmed(q, t.group, nil, entry)
  drop(t, nil, entry, false, 'the message is gone')
end

local function fetch_released(q, t, want)
  local found = G.pcall('XPENDING', q.stream, t.group, '-', '+', math.min(want, PAGE), S.RELEASED_CONSUMER)
  if found.err then return end
  for _, p in ipairs(found) do
    if t.bytes >= G.REPLY_BYTES then return end
    S.claim_entry(q, t, p[PENDING_ENTRY.id], p[PENDING_ENTRY.deliveries])
  end
end

-- Fetch up to `want` messages. Return true if no new message is left.
S.fetch = function(q, t, want)
  fetch_released(q, t, want)
  for _ = 1, want + SKIPPED_MAX do
    if #t.jobs >= want then return false end
    if t.bytes >= G.REPLY_BYTES or t.examined >= SKIPPED_MAX then return false end
    local count = math.min(want - #t.jobs, G.STREAM_PAGE)
    local entries = G.read_stream(q, t.group, t.consumer, count, t.start, S.create)
    for _, entry in ipairs(entries) do S.fetch_entry(q, t, entry[STREAM_ENTRY.id], entry[STREAM_ENTRY.fields], 1) end
    if #entries < count then return true end
  end
  return false
end
