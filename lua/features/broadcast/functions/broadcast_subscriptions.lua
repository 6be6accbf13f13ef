-- broadcast_subscribe: create a subscription if it does not exist.
--   KEYS 1 meta   ARGV 1 packed {group, start}   -> the entry id after which a new subscription begins
-- broadcast_subscriptions: return the progress of each subscription, a page per call.
--   KEYS 1 meta   ARGV 1 cursor ('' at first)
--   -> packed {rows, cursor ('' = the end)}   row: {name, lag or -1, pending, released, last delivered id, consumers}
--   released: 1,000 at most if the subscription has more than 1,000 consumers
-- broadcast_unsubscribe: delete a subscription.   KEYS 1 meta   ARGV 1 packed {group, force}   -> 'ok' | 'gone' |
-- 'active'
-- broadcast_delivery: return the state of a message in a subscription.   KEYS 1 meta   ARGV 1 packed {id, group}
--   -> packed {message exists 0|1, flat record, place}   place: 'pending', 'read', 'unread' or '' (unknown)
-- Bound: a page of 100 subscriptions, and about WORK_MAX entries that are counted because the server does not report a
-- lag; 5,000 consumers of a subscription (core/consumers.lua).
local STREAM_GROUP = G.rows.stream_group
local STREAM_CONSUMER = G.rows.stream_consumer
local S = G.subscriptions

local COUNTED, PAGE, WORK_MAX = 1000, 100, 5000

G.export('broadcast_subscribe', { 'allow-oom' }, function(q, r)
  return S.create(q, r.group, r.start)
end)

-- Return the number of released entries, and how many rows were read.
local function count_released(q, name, consumers)
  if consumers > COUNTED then
    local found = #redis.call('XPENDING', q.stream, name, '-', '+', COUNTED, S.RELEASED_CONSUMER)
    return found, found
  end
  return S.released_count(q, name), consumers
end

-- cursor: number and name of the group read last. Return the number of the first group to read.
local function first_of(groups, cursor)
  local at, name = string.match(cursor, '^(%d+)@(.*)$')
  at = tonumber(at) or 0
  if at == 0 or groups[at] and groups[at][STREAM_GROUP.name] == name then return at + 1 end
  for i, group in ipairs(groups) do
    if group[STREAM_GROUP.name] == name then return i + 1 end
  end
  return at -- the group was deleted
end

G.export('broadcast_subscriptions', { 'no-writes' }, function(q, r)
  local rows, work = {}, 0
  local groups, crowded = G.stream_groups(q)
  if crowded then error('ERR more than ' .. S.MOST .. ' subscriptions', 0) end
  local first = first_of(groups, r.cursor)
  for i = first, math.min(first + PAGE - 1, #groups) do
    local group = groups[i]
    local name, consumers = group[STREAM_GROUP.name], group[STREAM_GROUP.consumers]
    if not S.INTERNAL[name] then
      local lag, read = S.lag(q, group)
      local released, counted = count_released(q, name, consumers)
      rows[#rows + 1] = G.new.subscription({
        name = name, lag = lag, pending = group[STREAM_GROUP.pending], released = released,
        last_delivered = group[STREAM_GROUP.last_delivered], consumers = consumers,
      })
      work = work + read + counted
    end
    if i < #groups and (work >= WORK_MAX or i == first + PAGE - 1) then
      return { rows = rows, cursor = G.int(i) .. '@' .. name }
    end
  end
  return { rows = rows, cursor = '' }
end)

G.export('broadcast_unsubscribe', { 'allow-oom' }, G.for_operators(function(q, r)
  local group = r.group
  if S.INTERNAL[group] then return 'gone' end
  if not r.force then
    local consumers, crowded = G.consumers(q, group)
    if crowded then return 'active' end
    for _, c in ipairs(consumers) do
      if G.is_registered(q, c[STREAM_CONSUMER.name]) then return 'active' end
    end
  end
  local destroyed = G.pcall('XGROUP', 'DESTROY', q.stream, group)
  if destroyed ~= 1 then return 'gone' end
  G.delete_dead_letter_setting(q, group)
  return 'ok'
end))

S.place_of = function(q, id, group)
  local h = G.pick(q.J .. id, 'eid', 'timestamp')
  local entry = G.find_entry(q, id, h.eid, h.timestamp)
  if not entry then return '' end
  if S.holder(q, group, entry) then return 'pending' end
  local found = G.stream_group(q, group)
  if not found then return '' end
  return S.is_before(found[STREAM_GROUP.last_delivered], entry) and 'unread' or 'read'
end

local RECORD = { 'a', 'state', 'returnvalue', 'failedReason', 'failedType', 'stacktrace', 'finishedOn', 'stalled',
  'redelivery' }

G.export('broadcast_delivery', { 'no-writes' }, function(q, r)
  local exists = redis.call('EXISTS', q.J .. r.id)
  return {
    exists = exists, record = G.stored(S.record_key(q, r.id, r.group), RECORD),
    place = exists == 1 and S.place_of(q, r.id, r.group) or '',
  }
end)
