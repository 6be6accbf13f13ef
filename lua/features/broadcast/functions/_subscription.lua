-- Read and change subscriptions of a broadcast. A subscription is a consumer group of the message stream.
-- The stream provides the fencing: consumer and delivery count of an entry are the token of an attempt. A call with an
-- outdated token changes nothing (G.check_attempt does the same for jobs).
-- Entries with a `retryGroup` are for that subscription only: further attempts, also those of Node peers.
local PENDING_ENTRY = G.rows.pending_entry
local STREAM_GROUP = G.rows.stream_group
local PENDING_SUMMARY = G.rows.pending_summary
local PENDING_CONSUMER = G.rows.pending_consumer
local STREAM_ENTRY = G.rows.stream_entry
local S = G.subscriptions

S.RELEASED_CONSUMER = 'released' -- the consumer that holds entries no worker runs
S.INTERNAL = { [G.GROUP] = true, [G.WAKE_GROUP] = true }
S.MOST = G.GROUPS_MAX - 2 -- subscriptions of one broadcast, besides those two groups
local RECORD_TTL = 86400
local COUNTED = 1000

-- Return the key of the state of a message in one subscription. The key exists only if there is state to keep.
S.record_key = function(q, id, group) return q.J .. id .. ':sub:' .. group end

-- Write the record, unless the message is gone. for_ms: how long the record must live at least.
S.write_record = function(q, id, group, for_ms, ...)
  if not G.exists(q, id) then return end
  local key = S.record_key(q, id, group)
  redis.call('HSET', key, ...)
  redis.call('EXPIRE', key, RECORD_TTL + math.ceil(for_ms / 1000))
end

-- Return the number of failed attempts.
S.attempts = function(q, id, group) return G.count_of(redis.call('HGET', S.record_key(q, id, group), 'a')) end

-- Return job id, name and retryGroup from the fields of an entry.
S.parse = function(fields)
  local first, id, second, name, more = unpack(fields, 1, 5)
  if first == 'jobId' and second == 'name' and not more then return id, name end
  local f = {}
  for i = 1, #fields - 1, 2 do f[fields[i]] = fields[i + 1] end
  return f.jobId, f.name or '', f.retryGroup
end

-- Return the token: twice the delivery count, plus 1 for entries of this subscription only.
S.fence = function(deliveries, alone) return 2 * deliveries + (alone and 1 or 0) end

-- Return the consumer and delivery count of a pending entry; nil if it is not pending.
S.holder = function(q, group, entry)
  local pending = G.first(G.pcall('XPENDING', q.stream, group, entry, entry, 1))
  if not pending then return nil end
  return pending[PENDING_ENTRY.consumer], pending[PENDING_ENTRY.deliveries]
end

-- Return the status for an outdated token; nil if the token is current.
S.check_attempt = function(q, group, consumer, id, entry, fence)
  local holder, deliveries = S.holder(q, group, entry)
  if holder == consumer and S.fence(deliveries, fence % 2 == 1) == fence then return nil end
  if holder then return G.STALE end
  return G.exists(q, id) and G.ALREADY or G.GONE
end

-- Acknowledge entries; delete those for this subscription only.
S.ack = function(q, group, entries, own)
  if #entries > 0 then G.pcall('XACK', q.stream, group, unpack(entries)) end
  if #own > 0 then G.pcall('XDEL', q.stream, unpack(own)) end
end

-- Fail a message finally for this subscription only, without a report of a worker. kind: of the dead letter.
S.end_failed = function(q, group, id, kind, reason, entry, fence, now)
  G.dead_message(q, group, id, kind, reason, entry, fence, S.attempts(q, id, group))
  S.write_record(q, id, group, 0, 'state', 'failed', 'failedReason', reason, 'finishedOn', G.int(now))
end

-- Report a message that this subscription can no longer receive.
S.report_trimmed = function(q, group, id, entry)
  G.emit(q.events, 'trimmed', id or '', 'subscription', group, 'entry', entry)
end

-- Release an entry in its old place, before all new ones. Return false if the entry was trimmed.
S.release_entry = function(q, group, entry)
  local claimed = redis.call('XCLAIM', q.stream, group, S.RELEASED_CONSUMER, 0, entry, 'JUSTID')
  if #claimed == 0 then
    redis.call('XACK', q.stream, group, entry)
    return false
  end
  return true
end

-- start: '$', or the entry id after which it begins. Return the id at which it begins. An existing group is unchanged.
S.create = function(q, group, start)
  local groups, crowded = G.stream_groups(q)
  if (crowded or #groups >= S.MOST) and not G.stream_group(q, group) then
    error('ERR a broadcast has at most ' .. S.MOST .. ' subscriptions', 0)
  end
  local made = G.pcall('XGROUP', 'CREATE', q.stream, group, start, 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then error(made.err, 0) end
  return start == '$' and G.stream_facts(q.stream)['last-generated-id'] or start
end

-- Return the number of released entries of a subscription.
S.released_count = function(q, group)
  for _, consumer in ipairs(redis.call('XPENDING', q.stream, group)[PENDING_SUMMARY.consumers] or {}) do
    if consumer[PENDING_CONSUMER.name] == S.RELEASED_CONSUMER then return tonumber(consumer[PENDING_CONSUMER.count]) end
  end
  return 0
end

-- Return the number of active messages of a subscription; with too many consumers to be read, of all pending ones.
S.active_count = function(q, group)
  local info = G.stream_group(q, group)
  if not info then return 0 end
  if not G.has_few_consumers(info) then return info[STREAM_GROUP.pending] end
  return info[STREAM_GROUP.pending] - S.released_count(q, group)
end

-- Return the names of the subscriptions; none if there are too many to be read.
S.names = function(q)
  local names = {}
  for _, group in ipairs((G.stream_groups(q))) do
    local name = group[STREAM_GROUP.name]
    if not S.INTERNAL[name] then names[#names + 1] = name end
  end
  return names
end

-- Return whether subscriptions read the stream; true if there are too many groups to find out.
S.any = function(q)
  local _, crowded = G.stream_groups(q)
  return crowded or #S.names(q) > 0
end

-- Return the entries that a subscription has not read, -1 = more than COUNTED, and how many were counted: the server
-- reports no lag after entries before its end were deleted.
S.lag = function(q, group)
  local lag = group[STREAM_GROUP.lag]
  if lag then return lag, 0 end
  local left = #redis.call('XRANGE', q.stream, '(' .. group[STREAM_GROUP.last_delivered], '+', 'COUNT', COUNTED + 1)
  return left <= COUNTED and left or -1, left
end

-- Return whether entry id `a` is before `b`.
S.is_before = function(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  a_ms, a_seq, b_ms, b_seq = tonumber(a_ms), tonumber(a_seq), tonumber(b_ms), tonumber(b_seq)
  return a_ms < b_ms or (a_ms == b_ms and a_seq < b_seq)
end

local TRIM_MAX = 1000 -- entries per call
local RECORDS_MAX = 10000 -- records deleted per call; the others expire

local function purge(q, ids)
  local groups = S.names(q)
  G.purge(q, ids)
  if #groups == 0 then return end
  for i = 1, math.min(#ids, math.ceil(RECORDS_MAX / #groups)) do
    local keys = {}
    for j, group in ipairs(groups) do keys[j] = S.record_key(q, ids[i], group) end
    redis.call('UNLINK', unpack(keys))
  end
end

-- Keep the newest `most` entries (0 = any number) that are younger than `age` ms (0 = any), and delete the other
-- entries with their messages.
S.trim = function(q, now, most, age, more)
  local length = redis.call('XLEN', q.stream)
  local excess = most > 0 and math.max(0, length - most) or 0
  local limit = TRIM_MAX + (more or 0)
  local found = {}
  if excess > 0 then found = redis.call('XRANGE', q.stream, '-', '+', 'COUNT', math.min(excess, limit)) end
  if age > 0 and #found < limit then
    local old = redis.call('XRANGE', q.stream, '-', G.int(math.max(0, now - age)), 'COUNT', limit)
    if #old > #found then found = old end
  end
  if #found == 0 then return end
  local ids = {}
  for _, entry in ipairs(found) do ids[#ids + 1] = S.parse(entry[STREAM_ENTRY.fields]) end
  redis.call('XTRIM', q.stream, 'MAXLEN', '=', length - #found)
  purge(q, ids)
end
