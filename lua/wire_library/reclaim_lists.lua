-- glidemq_reclaimStalledListJobs: recover stalled jobs without a stream entry.   KEYS 1 stream, 2 events
--   ARGV 1 min idle ms, 2 max stalled, 3 now, 4 failed key, 5 lock duration (0)   -> jobs handled
-- glidemq_healListActive: repair the counter `list-active`.   KEYS 1 id   -> its drift; a positive one has been
-- subtracted
-- glidemq_getActiveListJobIds: return active list jobs.
--   KEYS 1 id   ARGV 1 start, 2 end (inclusive; absent or < 0 = all)   -> ids
-- Jobs activated by this library are found in `list-active-ids`. Only if the counter shows more, the keyspace is searched:
-- hashes only, with the queue's name matched literally.
-- Bound: about JOBS_A_CALL jobs and KEYS_A_STEP * STEPS_A_CALL keys. The next call of the function continues: its
-- position is in `search-cursors`. getActiveListJobIds always starts at the beginning, and returns about LISTED ids of
-- the set.
local W = G.W

local JOBS_A_CALL, JOBS_A_PAGE, KEYS_A_STEP, STEPS_A_CALL, LISTED = 200, 100, 500, 20, 1000
local CURSORS_KEPT_MS = 3600000

local function escaped(text) return (string.gsub(text, '[%*%?%[%]%^\\]', '\\%0')) end

W.cursor = function(q, field) return redis.call('HGET', q.search_cursors, field) or nil end

-- value: nil = the search is complete. before: the cursor that was read.
W.set_cursor = function(q, field, value, before)
  local key = q.search_cursors
  if value then
    redis.call('HSET', key, field, value)
    redis.call('PEXPIRE', key, CURSORS_KEPT_MS)
  elseif before then
    redis.call('HDEL', key, field)
  end
end

-- Return how many of the jobs that `list-active` counts are in a set. A job may be in both for a while.
local function in_sets(q) return G.count_list_ids(q) + redis.call('ZCARD', q.list_popped) end

local function counted(q) return G.count_of(redis.call('GET', q.list_active)) end

-- Read one step of the keyspace. Call found(id, h) for each active job of a list that is in no set. Return the cursor
-- and the number of active jobs read.
local function search_keys(q, pattern, cursor, found)
  local page, read = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', KEYS_A_STEP, 'TYPE', 'hash'), 0
  for _, key in ipairs(page[2]) do
    if redis.call('HGET', key, 'state') == 'active' then
      local id = string.sub(key, #q.J + 1)
      local h = G.job_of(q, id)
      read = read + 1
      if W.from_list(h) and not G.is_list_job(q, id) then found(id, h) end
    end
  end
  return page[1], read
end

-- s: {room, found}. Each returns the cursor to continue with, nil at the end.
local SEARCH = {}

-- A member that is not active has ended under a peer's own library.
SEARCH[1] = function(q, s, cursor)
  local key = q.list_active_ids
  for _ = 1, JOBS_A_CALL do
    local page = redis.call('SSCAN', key, cursor, 'COUNT', JOBS_A_PAGE)
    cursor = page[1]
    for _, id in ipairs(page[2]) do
      local h = G.job_of(q, id)
      if h.state == 'active' then s.found(id, h) else redis.call('SREM', key, id) end
      s.room = s.room - 1
    end
    if cursor == '0' then return nil end
    if s.room <= 0 then return cursor end
  end
  return cursor
end

-- Found jobs are added to the set.
SEARCH[2] = function(q, s, cursor)
  if counted(q) <= in_sets(q) then return nil end
  local pattern = escaped(q.J) .. '*'
  local function found(id, h)
    redis.call('SADD', q.list_active_ids, id)
    s.found(id, h)
  end
  for _ = 1, STEPS_A_CALL do
    local read
    cursor, read = search_keys(q, pattern, cursor, found)
    s.room = s.room - read
    if cursor == '0' then return nil end
    if s.room <= 0 then return cursor end
  end
  return cursor
end

-- Call found(id, h) for active list jobs, from the position of `name` on. Return whether the search is complete.
local function search(q, name, found)
  G.claim_list_ids(q)
  local stored, s = W.cursor(q, name), { room = JOBS_A_CALL, found = found }
  local first, cursor = G.match(stored, '^([12]):(%d+)$')
  first = tonumber(first) or 1
  for number = first, #SEARCH do
    if s.room <= 0 then
      W.set_cursor(q, name, number .. ':0')
      return false
    end
    local continue = SEARCH[number](q, s, number == first and cursor or '0')
    if continue then
      W.set_cursor(q, name, number .. ':' .. continue)
      return false
    end
  end
  W.set_cursor(q, name, nil, stored)
  return true
end

local function back_to_list(q, id, h)
  W.reset_stalled(q, id, h)
  W.push_list(q, h.lifo == '1' and 'lifo' or 'priority', id)
end

local function handle(q, r, id, h)
  local beat = G.past_time(h.lastActive, r.now) or 0
  if r.now - beat < W.stall_threshold(h, r.lock, r.min_idle) then return end
  G.set(q, id, 'lastActive', G.text(r.now))
  r.handled = r.handled + 1
  if not W.expired_now(q, id, h, r.now) and not W.stall(q, id, h, r.max_stalled, r.now) then
    back_to_list(q, id, h)
  end
  G.untrack_list_job(q, id)
end

-- Return jobs popped by a worker that never activated them to the head of their list.
local function return_popped(q, r)
  local key = q.list_popped
  local limit = G.now(q) - math.max(r.lock, r.min_idle)
  G.repair_times(key, G.now(q), limit)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', G.int(limit), 'LIMIT', 0, 100)) do
    redis.call('ZREM', key, id)
    local h = G.job_of(q, id)
    if h.state == 'waiting' and h.name and not W.expired_now(q, id, h, r.now) then
      redis.call('RPUSH', h.lifo == '1' and q.lifo or q.priority, id)
      G.untrack_list_job(q, id)
      r.handled = r.handled + 1
    end
  end
end

G.export('reclaimStalledListJobs', { 'allow-oom' }, function(keys, args)
  local q = W.queue(keys[1], 'stream')
  local r = { min_idle = G.num(args[1]), max_stalled = G.num(args[2], 1), now = G.num(args[3]), lock = G.num(args[5]),
    handled = 0 }
  return_popped(q, r)
  if counted(q) > 0 then search(q, 'reclaim', function(id, h) handle(q, r, id, h) end) end
  return r.handled
end)

-- Never before a complete search; a counter below zero is set to 0. Jobs may be in two sets for a while: then less is
-- subtracted.
G.export('healListActive', { 'allow-oom' }, function(keys)
  local q = W.queue(keys[1], 'id')
  local counter = G.num(redis.call('GET', q.list_active))
  if counter < 0 then redis.call('SET', q.list_active, '0') end
  if counter <= 0 then return 0 end
  if not search(q, 'heal', function() end) then return 0 end
  local actual = in_sets(q)
  local drift = counter - actual
  if drift > 0 then redis.call('SET', q.list_active, G.int(actual)) end
  return drift
end)

-- Return ids of active list jobs.
local function listed(q)
  local ids, seen = {}, {}
  local function add(id)
    if seen[id] then return end
    seen[id] = true
    ids[#ids + 1] = id
  end
  local function add_active(members)
    for _, id in ipairs(members) do
      if G.state_of(q, id) == 'active' then add(id) end
    end
  end
  add_active(G.pcall('SSCAN', q.list_active_ids, '0', 'COUNT', LISTED)[2] or {})
  local pattern, cursor, room = escaped(q.J) .. '*', '0', JOBS_A_CALL
  if math.max(1, counted(q)) <= in_sets(q) then return ids end
  for _ = 1, STEPS_A_CALL do
    local read
    cursor, read = search_keys(q, pattern, cursor, add)
    room = room - read
    if cursor == '0' or room <= 0 then break end
  end
  return ids
end

G.export('getActiveListJobIds', { 'no-writes' }, function(keys, args)
  local ids, slice = listed(W.queue(keys[1], 'id')), {}
  local first, last = math.max(0, G.num(args[1])), G.num(args[2], -1)
  if last < 0 then last = #ids - 1 end
  for i = first + 1, math.min(last + 1, #ids) do slice[#slice + 1] = ids[i] end
  return slice
end)
