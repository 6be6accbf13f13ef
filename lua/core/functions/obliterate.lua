-- obliterate: delete a queue with every key, in bounded steps, at a cost that depends on the size of the queue.
-- KEYS 1 meta   ARGV 1 packed {force, batch, cursor, has usage 0|1, layout}
-- -> packed {status, deleted jobs, cursor, removed}
-- status: 'more' (call again with the cursor of the reply; '' at first), 'done', 'active' (force is off and jobs are
-- active; nothing was changed, and the number is the count of active jobs), 'partitioned' (partition 0 has
-- another layout than `layout`, or another partition a later one; nothing was changed)
-- layout: number of the layout of a partitioned queue: the first step for each further partition removes it there, the last
-- one for partition 0 deletes the layout; layouts up to it are refused from then on. 0 = a queue without partitions
-- removed: how many keys and places in indexes this call removed, approximately; 0 = there was no progress.
-- Jobs are found through the indexes, then through their families, the events and the ids near both ends of the id
-- counter: a Node peer's library leaves parents that wait for their children, active jobs of lists and keys of removed
-- jobs in no index. No key of another queue is read. Keys of a foreign type are deleted with the rest.
-- Bound: `batch` jobs, 1,000 relatives of each, 1,000 ids that are searched, 1,000 minutes of usage.

local ENDED_CHILD = G.rows.ended_child
local STREAM_ENTRY = G.rows.stream_entry
local SCAN = G.rows.scan
local STREAM_CONSUMER = G.rows.stream_consumer
local RELATIVES, GROUPS, IDS, MINUTES = 1000, 50, 1000, 1000
local GAP = 4000 -- the search by id ends after this many ids in a row without a key
local MINUTE_MS, USAGE_MS = 60000, 2592000000

-- ------------------------------------------------------------------ jobs

-- Remember the relatives of a job that are in this queue: their turn comes in a later call.
local function add_relatives(q, members)
  local ids = {}
  for _, member in ipairs(members) do
    local P, id = string.match(member, '^(.*:)([^:]*)$')
    if P == q.P and #ids < RELATIVES then ids[#ids + 1] = id end
  end
  if #ids > 0 then redis.call('SADD', q.obliterating, unpack(ids)) end
end

local function delete_group(q, name)
  redis.call('UNLINK', q.P .. 'groupq:' .. name, q.P .. 'group:' .. name, q.P .. 'orderdone:pending:' .. name)
end

-- Delete a job with all its keys. Return 1 if it existed, and how many keys it had.
local function delete_job(q, id, subscriptions)
  local P, key = q.P, q.J .. id
  local parent, parent_queue, group, budget, flow = unpack(G.pcall('HMGET', key, 'parentId', 'parentQueue',
    'groupKey', 'budgetKey', 'building'))
  if parent and parent_queue then add_relatives(q, { G.flows.P_of(q, parent_queue) .. parent }) end
  local parents = G.pcall('SPOP', P .. 'parents:' .. id, RELATIVES)
  add_relatives(q, parents)
  local children = G.pcall('SPOP', P .. 'deps:' .. id, RELATIVES)
  add_relatives(q, children)
  -- Parked jobs of the group are in the record that is deleted here: only an empty one.
  if group and G.pcall('ZCARD', P .. 'groupq:' .. group) == 0 then delete_group(q, group) end
  if budget and string.sub(budget, 1, #P) == P then redis.call('UNLINK', budget) end
  if flow then redis.call('UNLINK', P .. 'flow:' .. flow, P .. 'flow-mark:' .. flow) end
  local records = {}
  for i, name in ipairs(subscriptions) do records[i] = G.subscriptions.record_key(q, id, name) end
  if #records > 0 then redis.call('UNLINK', unpack(records)) end
  local existed, others = redis.call('UNLINK', key), 0
  if #children == RELATIVES then -- there may be more children: come back, with the record gone
    redis.call('SADD', q.obliterating, id)
  else
    others = redis.call('UNLINK', P .. 'budget:' .. id, key .. ':usage-lock', G.satellites(q, id))
  end
  return existed, existed + #parents + #children + others
end

-- Return the ids of the members of a set. A member of `scheduled` may be a further attempt of a subscription.
local function ids_of(q, key, members)
  for i, member in ipairs(members) do
    local group = key == q.scheduled and select(2, G.scheduled_job(q, member))
    members[i] = G.job_of_member(q, key, member)
    if group then redis.call('UNLINK', G.subscriptions.record_key(q, members[i], group)) end
  end
  return members
end

-- Return ids of jobs, `count` at most, and how many places were emptied.
local function first_ids(q, count)
  local sets = { q.completed, q.failed, q.scheduled, q.suspended, q.list_heartbeats, q.waiting_children, q.suspects,
    q.list_popped, q.leases, q.delayed_own, q.ranked_above, q.ranked_below,
    q.fair_delayed }
  for _, key in ipairs(sets) do
    local ids = G.pcall('ZRANGE', key, 0, count - 1)
    if #ids > 0 then
      local removed = redis.call('ZREM', key, unpack(ids))
      return ids_of(q, key, ids), removed
    end
  end
  for _, key in ipairs({ q.lifo, q.priority }) do
    local ids = G.pcall('LRANGE', key, 0, count - 1)
    if #ids > 0 then
      redis.call('LTRIM', key, #ids, -1)
      return ids, #ids
    end
  end
  local taken, fair = G.attempt(G.fair.take_some, q, count)
  if taken and #fair > 0 then return fair, #fair end
  for _, key in ipairs({ q.list_active_ids, q.list_taken, q.obliterating }) do
    local ids = G.pcall('SPOP', key, count)
    if #ids > 0 then return ids, #ids end
  end
  local ids, entries = {}, {}
  for _, e in ipairs(G.pcall('XRANGE', q.stream, '-', '+', 'COUNT', count)) do
    entries[#entries + 1] = e[STREAM_ENTRY.id]
    ids[#ids + 1] = G.entry_job(e[STREAM_ENTRY.fields])
  end
  return ids, G.ack_entries(q, entries)
end

-- Return ids of parked jobs, and how many ids and groups were removed. A group is deleted when it has no parked jobs.
local function group_ids(q, count)
  local page = G.pcall('HSCAN', q.ordering, 0, 'COUNT', GROUPS)
  local names, ids, groups = page[SCAN.found] or {}, {}, 0
  for i = 1, #names, 2 do
    local parked = q.P .. 'groupq:' .. names[i]
    local found = G.pcall('ZRANGE', parked, 0, count - #ids - 1)
    if #found > 0 then
      redis.call('ZREM', parked, unpack(found))
      for _, id in ipairs(found) do ids[#ids + 1] = id end
    else
      delete_group(q, names[i])
      redis.call('HDEL', q.ordering, names[i])
      groups = groups + 1
    end
    if #ids + groups >= count then break end
  end
  return ids, #ids + groups
end

-- ------------------------------------------------------------------ other keys, page by page; each returns how many

-- Call each(member) for the first members of a sorted set, and remove them. Return how many.
local function empty(key, count, each)
  local members = G.pcall('ZRANGE', key, 0, count - 1)
  for _, member in ipairs(members) do each(member) end
  if #members > 0 then redis.call('ZREM', key, unpack(members)) end
  return #members
end

local OTHERS = {
  -- groups that only have a limit
  function(q, count) return empty(q.ratelimited, count, function(name) delete_group(q, name) end) end,
  function(q, count) return empty(q.workers, count, function(name) redis.call('UNLINK', q.P .. 'w:' .. name) end) end,
  function(q, count) return empty(q.temporary, count, function(suffix) redis.call('UNLINK', q.P .. suffix) end) end,
  function(q, count)
    return empty(q.batches, count, function(id) redis.call('UNLINK', G.batches.key(q, id), G.batches.jobs_key(q, id)) end)
  end,
  function(q)
    local page = G.pcall('HSCAN', q.flows, 0, 'COUNT', GROUPS)[SCAN.found] or {}
    for i = 1, #page, 2 do
      redis.call('UNLINK', q.P .. 'flow:' .. page[i], q.P .. 'flow-mark:' .. page[i])
      redis.call('HDEL', q.flows, page[i])
    end
    return #page
  end,
  function(q, count)
    local results = G.pcall('LRANGE', q.parents_left, 0, count - 1)
    for _, packed in ipairs(results) do
      redis.call('UNLINK', q.P .. 'parents-left:' .. tostring(G.unpacked(packed)[ENDED_CHILD.id]))
    end
    if #results > 0 then redis.call('LTRIM', q.parents_left, #results, -1) end
    return #results
  end,
  function(q)
    local id = G.first(G.pcall('ZRANGE', q.writes, 0, 0))
    if not id then return 0 end
    local stem = q.P .. 'write:' .. id
    local attempts = G.pcall('SPOP', stem .. ':tried', RELATIVES)
    for _, attempt in ipairs(attempts) do redis.call('UNLINK', stem .. ':try:' .. attempt) end
    if #attempts < RELATIVES then
      redis.call('UNLINK', stem, stem .. ':tried', stem .. ':won', stem .. ':queues', stem .. ':drivers')
      redis.call('ZREM', q.writes, id)
    end
    return 1
  end,
}

-- ------------------------------------------------------------------ searches: (q, c, batch) -> next position, or nil

-- c: position in the present search; gap: ids in a row without a key; jobs and keys deleted by this call;
-- subscriptions; usage: the queue has usage; complete: all ids were searched
local SEARCH = {}

local function found_job(q, c, id)
  local existed, keys = delete_job(q, id, c.subscriptions)
  c.deleted, c.keys = c.deleted + existed, c.keys + keys
  return keys
end

-- Jobs that the latest events name.
SEARCH.events = function(q, c, batch)
  local from = G.after(c.position)
  local page = G.pcall('XRANGE', q.events, from, '+', 'COUNT', batch)
  for _, entry in ipairs(page) do
    local id = G.entry_job(entry[STREAM_ENTRY.fields])
    if id and id ~= '' and G.exists(q, id) then found_job(q, c, id) end
  end
  return #page == batch and page[#page][STREAM_ENTRY.id] or nil
end

-- Ids from `position` on, in steps of 1 or -1, until GAP ids in a row have no key.
local function search_ids(q, c, batch, step)
  local last = G.count_of(G.pcall('GET', q.id))
  local at, found = tonumber(c.position) or (step > 0 and 1 or last), 0
  for _ = 1, IDS do
    if at < 1 or at > last then c.complete = true end
    if c.complete or c.gap >= GAP then return nil end
    local id = G.int(at)
    if redis.call('EXISTS', q.J .. id, q.P .. 'budget:' .. id, G.satellites(q, id)) > 0 then
      found_job(q, c, id)
      c.gap, found = 0, found + 1
    else
      c.gap = c.gap + 1
    end
    at = at + step
    if found >= batch then break end
  end
  return G.int(at)
end

SEARCH.newest = function(q, c, batch) return search_ids(q, c, batch, -1) end
SEARCH.oldest = function(q, c, batch) return not c.complete and search_ids(q, c, batch, 1) or nil end

-- Usage that a peer reported is in no index.
SEARCH.usage = function(q, c)
  if not c.usage then return nil end
  local now = G.now(q)
  local from, keys = tonumber(c.position) or now - now % MINUTE_MS - USAGE_MS, {}
  for i = 0, MINUTES - 1 do keys[#keys + 1] = q.P .. 'usage:' .. G.int(from + i * MINUTE_MS) end
  c.keys = c.keys + redis.call('UNLINK', unpack(keys))
  from = from + MINUTES * MINUTE_MS
  return from <= now + MINUTE_MS and G.int(from) or nil
end

local ORDER = { 'events', 'newest', 'oldest', 'usage' }

-- Continue the searches until one has found something or reached its bound. Return the next cursor; nil = all ended
-- and this call found nothing.
local function search(q, c, cursor, batch)
  local phase, gap, position = string.match(cursor, '^(%l+)|(%d+)|(.*)$')
  local first = 1
  for i, name in ipairs(ORDER) do
    if name == phase then first = i end
  end
  c.position, c.gap = position or '', tonumber(gap) or 0
  for number = first, #ORDER do
    position = SEARCH[ORDER[number]](q, c, batch)
    if position then return ORDER[number] .. '|' .. G.int(c.gap) .. '|' .. position end
    c.position, c.gap = '', 0
    -- After `newest` has reached the first id there is nothing left for `oldest`.
    local following = c.complete and 'usage' or ORDER[number + 1]
    if c.keys > 0 then return (following or 'usage') .. '|0|' end
  end
  return nil
end

-- ------------------------------------------------------------------ the call

local function active_count(q)
  local active = G.pending_count(q, G.GROUP) + G.count_of(G.pcall('GET', q.list_active))
  for _, group in ipairs(G.subscriptions.names(q)) do active = active + G.subscriptions.active_count(q, group) end
  return active
end

-- Delete the keys that exist once per queue, and those of the consumers of its groups.
local function delete_queue(q)
  local P, groups = q.P, G.subscriptions.names(q)
  for _, group in ipairs(groups) do redis.call('UNLINK', P .. 'lock:recover:' .. group) end
  groups[#groups + 1] = G.GROUP
  for _, group in ipairs(groups) do
    for _, consumer in ipairs((G.consumers(q, group))) do
      redis.call('UNLINK', P .. 'w:' .. consumer[STREAM_CONSUMER.name])
    end
  end
  redis.call('UNLINK', unpack(G.queue_keys(q)))
end

-- Delete one batch of the jobs in the indexes. Return the deleted jobs, and how many places were emptied.
local function delete_indexed(q, batch, subscriptions)
  local ids, found = first_ids(q, batch)
  if found == 0 then ids, found = group_ids(q, batch) end
  local deleted = 0
  for _, id in ipairs(ids) do deleted = deleted + delete_job(q, id, subscriptions) end
  for i = 1, found == 0 and #OTHERS or 0 do found = found + OTHERS[i](q, batch) end
  return deleted, found
end

-- Return whether partition 0 has another layout than the one that is deleted, or another partition a later one.
local function has_other_layout(q, layout)
  if redis.call('HEXISTS', q.meta, 'partitions') == 1 then return G.layout.number(q) ~= layout end
  return layout > 0 and math.max(G.layout.number(q), G.layout.deleted(q)) > layout
end

local function reply(status, deleted, cursor, removed)
  return { status = status, deleted = deleted, cursor = cursor, removed = removed }
end

G.export('obliterate', { 'allow-oom' }, G.for_operators(function(q, r)
  if has_other_layout(q, r.layout) then return reply('partitioned', 0, '', 0) end
  local active = r.force and 0 or active_count(q)
  if active > 0 then return reply('active', active, '', 0) end
  if r.layout > 0 and redis.call('HEXISTS', q.meta, 'partitions') == 0 then G.layout.note_deleted(q, r.layout) end
  local subscriptions = G.subscriptions.names(q)
  local deleted, found = delete_indexed(q, r.batch, subscriptions)
  if found > 0 then return reply('more', deleted, r.cursor, found) end
  local c = { deleted = 0, keys = 0, subscriptions = subscriptions, usage = r.has_usage == 1 }
  local cursor = search(q, c, r.cursor, r.batch)
  if cursor then return reply('more', c.deleted, cursor, c.keys) end
  delete_queue(q)
  if r.layout > 0 then G.layout.note_deleted(q, r.layout) end
  return reply('done', 0, '', 0)
end))
