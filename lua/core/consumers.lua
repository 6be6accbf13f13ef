-- Read the consumer groups and consumers of the job stream. The server returns them only as a whole, so their number is
-- read first: a stream with more than GROUPS_MAX groups, or a group with more than CONSUMERS_MAX consumers, is not read
-- (docs/learn/guarantees.md, "Bounded calls").

local STREAM_GROUP = G.rows.stream_group
local STREAM_CONSUMER = G.rows.stream_consumer
local PENDING_ENTRY = G.rows.pending_entry
local GROUPS_MAX, CONSUMERS_MAX, PENDING_MAX = 1000, 5000, 5000
local IDLE_PAGE = 1000 -- pending entries
local PEERS, PEERS_SEEN_MS = 'worker-', 86400000

G.GROUPS_MAX = GROUPS_MAX

local function number_of_groups(q)
  local info = G.pcall('XINFO', 'STREAM', q.stream)
  if info.err and string.find(info.err, 'permission', 1, true) then error(info.err, 0) end
  for i = 1, #info, 2 do
    if info[i] == 'groups' then return info[i + 1] end
  end
  return 0
end

-- Return the groups of the stream, as XINFO GROUPS does: {_, name, _, consumers, _, pending, _, last delivered id, …}.
-- The second value is true if there are too many to be read.
G.stream_groups = function(q)
  local count = number_of_groups(q)
  if count == 0 or count > GROUPS_MAX then return {}, count > 0 end
  return redis.call('XINFO', 'GROUPS', q.stream), false
end

-- Return one group, as above; nil if it does not exist. The second value is true if there are too many.
G.stream_group = function(q, name)
  local groups, crowded = G.stream_groups(q)
  for _, group in ipairs(groups) do
    if group[STREAM_GROUP.name] == name then return group, false end
  end
  return nil, crowded
end

-- Return whether a group, as above, has few enough consumers to be read.
G.has_few_consumers = function(group) return group[STREAM_GROUP.consumers] <= CONSUMERS_MAX end

-- Return the consumers of a group, as XINFO CONSUMERS does: {_, name, _, pending, _, idle ms, …}. The second value is
-- true if there are too many to be read.
G.consumers = function(q, name)
  local group, crowded = G.stream_group(q, name)
  if not group then return {}, crowded end
  if not G.has_few_consumers(group) then return {}, true end
  return redis.call('XINFO', 'CONSUMERS', q.stream, name), false
end

-- Return the number of pending entries of a group; at most PENDING_MAX if the stream has too many groups.
G.pending_count = function(q, name)
  local group, crowded = G.stream_group(q, name)
  if group then return group[STREAM_GROUP.pending] end
  return crowded and #G.pcall('XPENDING', q.stream, name, '-', '+', PENDING_MAX) or 0
end

G.is_registered = function(q, consumer) return redis.call('EXISTS', q.P .. 'w:' .. consumer) == 1 end

-- Return whether a consumer is a Node peer.
G.is_foreign = function(consumer) return string.sub(consumer, 1, #PEERS) == PEERS end

-- Return whether workers of another library are registered. True if there are too many consumers to find out.
local function read_peers(q)
  local consumers, known = G.consumers(q, G.GROUP)
  for _, consumer in ipairs(consumers) do
    local name = consumer[STREAM_CONSUMER.name]
    known = known or G.is_foreign(name) and G.is_registered(q, name)
  end
  return known
end

G.has_peers = function(q) return G.once(q, 'peers', read_peers) end

-- Return whether workers of another library are registered, or were during the last day.
G.had_peers = function(q, now)
  if G.has_peers(q) then
    redis.call('HSET', q.meta, 'peersSeen', G.int(now))
    return true
  end
  return now - G.num(redis.call('HGET', q.meta, 'peersSeen')) < PEERS_SEEN_MS
end

-- Call each(p) for pending entries that have been idle for `idle` ms, `most` at most. p: {entry, consumer, idle ms,
-- deliveries}. from: the start of the range. Return the entry to continue after, '' at the end. (The server's own filter
-- by idle time reads all entries.)
G.each_idle = function(q, group, idle, from, most, each)
  local pending, found = G.pcall('XPENDING', q.stream, group, from, '+', IDLE_PAGE), 0
  for i, p in ipairs(pending) do
    if p[PENDING_ENTRY.idle] >= idle then
      each(p)
      found = found + 1
      if found == most then return i == #pending and #pending < IDLE_PAGE and '' or p[PENDING_ENTRY.id] end
    end
  end
  return #pending == IDLE_PAGE and pending[IDLE_PAGE][PENDING_ENTRY.id] or ''
end
