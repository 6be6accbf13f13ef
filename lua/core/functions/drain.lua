-- drain: delete the waiting jobs and all their keys, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {delayed, cursor, batch, total}   -> packed {deleted, cursor}
-- cursor: '' at first, then the cursor of the previous reply; '' in the reply = the end
-- total: deleted by the previous calls. The last call writes one event for all of them, as peers do (jobId = count).
-- Deletes ready jobs (stream, lists, due members of the scheduled set, parked jobs of groups) and, with `delayed`,
-- delayed jobs too. Active jobs stay. Each phase ends at the end that its source had when the phase began, so that
-- producers cannot prolong it. Bound: `batch` jobs, 512 groups and 256 priorities per call.

local STREAM_ENTRY = G.rows.stream_entry
local SCAN = G.rows.scan
local M = G.groups
local BANDS_A_CALL, GROUPS_A_SCAN = 256, 100
local NOT_BEGUN = { waiting = true, prioritized = true, delayed = true, ['group-waiting'] = true }

-- d: the deleted jobs, and the groups whose turns and slots became free.
local function group_of(q, d, name)
  d.groups[name] = d.groups[name] or M.group(q, name)
  return d.groups[name]
end

local function delete(q, d, id)
  local ok, h = G.attempt(G.pick, q.J .. id, 'state', 'groupKey', 'orderingSeq', 'slot', 'parentId',
    'parentQueue', 'parentIds', 'opts', 'jobBatch')
  if not ok or not NOT_BEGUN[h.state] then return end
  local name = G.given(h.groupKey)
  if name then
    local g, seq = group_of(q, d, name), G.count_of(h.orderingSeq)
    if M.holds_slot(g, h) then
      M.free_slot(q, g, id, true)
    elseif seq > 0 and seq == g.nextSeq and h.slot ~= '0' then
      -- Written once, at the end of the call. (A job that was requeued after its end, slot 0, may have left its
      -- mark.)
      g.nextSeq, g.advanced = seq + 1, true
    else
      M.mark_skip(g, seq)
    end
    if h.state == 'group-waiting' then redis.call('ZREM', g.queue, id) end
  end
  G.flows.child_ended(q, id, G.flows.REMOVED, 'drained', d.now, h)
  d.ids[#d.ids + 1] = id
end

-- Members of a broadcast retry are `id||group`.
local function delete_members(q, d, field, members)
  for _, member in ipairs(members) do delete(q, d, string.match(member, '^(.-)||') or member) end
  if #members > 0 then redis.call('ZREM', q[field], unpack(members)) end
end

-- ---------------------------------------------------------------- phases: (q, d, position) -> next position, or nil

local PHASE = {}

-- position: how many of the members present at first are left.
PHASE.suspects = function(q, d, position)
  local left = tonumber(position) or redis.call('ZCARD', q.suspects)
  local ids = left > 0 and redis.call('ZRANGE', q.suspects, 0, math.min(left, d.batch) - 1) or {}
  for _, id in ipairs(ids) do delete(q, d, id) end
  if #ids > 0 then redis.call('ZREM', q.suspects, unpack(ids)) end
  left = left - #ids
  return #ids > 0 and left > 0 and G.int(left) or nil
end

-- position: the entry read last, and the entry to end with.
PHASE.stream = function(q, d, position)
  local after, till = string.match(position, '^(.-)|(.*)$')
  if not till then
    local last = G.first(redis.call('XREVRANGE', q.stream, '+', '-', 'COUNT', 1))
    if not last then return nil end
    after, till = '', last[STREAM_ENTRY.id]
  end
  local page = redis.call('XRANGE', q.stream, after == '' and '-' or '(' .. after, till, 'COUNT', d.batch)
  if #page == 0 then return nil end
  G.delete_unclaimed(q, G.GROUP, page, function(id) delete(q, d, id) end)
  local last = page[#page][STREAM_ENTRY.id]
  return #page == d.batch and last ~= till and last .. '|' .. till or nil
end

-- position: how many of the members present at first are left.
local function list(field)
  return function(q, d, position)
    local left = tonumber(position) or redis.call('LLEN', q[field])
    local ids = left > 0 and redis.call('LRANGE', q[field], 0, math.min(left, d.batch) - 1) or {}
    for _, id in ipairs(ids) do delete(q, d, id) end
    if #ids > 0 then redis.call('LTRIM', q[field], #ids, -1) end
    left = left - #ids
    return #ids > 0 and left > 0 and G.int(left) or nil
  end
end

PHASE.lifo, PHASE.priority = list('lifo'), list('priority')

-- Jobs with ranks of their own sets; delayed ones only with `delayed`.
local function ranks(field)
  return function(q, d, position)
    if field == 'delayed_own' and not d.delayed then return nil end
    local left = tonumber(position) or redis.call('ZCARD', q[field])
    local members = left > 0 and redis.call('ZRANGE', q[field], 0, math.min(left, d.batch) - 1) or {}
    for _, member in ipairs(members) do
      local id = field == 'delayed_own' and member or G.ranks.id_of(member)
      if id then delete(q, d, id) end
    end
    if #members > 0 then redis.call('ZREM', q[field], unpack(members)) end
    left = left - #members
    return #members > 0 and left > 0 and G.int(left) or nil
  end
end

PHASE.above, PHASE.below, PHASE.own = ranks('ranked_above'), ranks('ranked_below'), ranks('delayed_own')

-- Due members of the scheduled set, by priority. position: the priority, and how many members to read at most.
PHASE.due = function(q, d, position)
  local band, left = string.match(position, '^(%d+)|(%d+)$')
  band, left = tonumber(band) or 0, tonumber(left) or redis.call('ZCARD', q.scheduled)
  local room = d.batch
  for _ = 1, BANDS_A_CALL do
    if left <= 0 then return nil end
    band = G.next_band(q, band)
    if not band then return nil end
    local limit, until_now = math.min(room, left), G.scheduled_score(band, d.now)
    local due = redis.call('ZRANGEBYSCORE', q.scheduled, G.band_start(band), until_now, 'LIMIT', 0, limit)
    delete_members(q, d, 'scheduled', due)
    room, left = room - #due, left - #due
    if #due == limit then break end
    band = band + 1
  end
  return G.int(band) .. '|' .. G.int(left)
end

-- position: how many of the jobs present at first are left.
PHASE.fair = function(q, d, position)
  if not G.fair.used(q) then return nil end
  local left = tonumber(position) or G.fair.waiting(q)
  local ids = left > 0 and G.fair.take_some(q, math.min(left, d.batch)) or {}
  for _, id in ipairs(ids) do delete(q, d, id) end
  left = left - #ids
  return #ids > 0 and left > 0 and G.int(left) or nil
end

local function delayed(field)
  return function(q, d, position)
    if not d.delayed then return nil end
    local left = tonumber(position) or redis.call('ZCARD', q[field])
    local members = left > 0 and redis.call('ZRANGE', q[field], 0, math.min(left, d.batch) - 1) or {}
    delete_members(q, d, field, members)
    left = left - #members
    return #members > 0 and left > 0 and G.int(left) or nil
  end
end

PHASE.scheduled, PHASE.fairdelayed = delayed('scheduled'), delayed('fair_delayed')

-- Parked jobs. position: the cursor of the group scan, and how many of the jobs parked at first are left.
PHASE.groups = function(q, d, position)
  local scan, left = string.match(position, '^(%d+)|(%d*)$')
  local page = redis.call('HSCAN', q.ordering, scan or 0, 'COUNT', GROUPS_A_SCAN)
  local names, parked, room = page[SCAN.found], 0, d.batch
  left = tonumber(left)
  for i = 1, #names, 2 do
    local key = q.P .. 'groupq:' .. names[i]
    if not left then parked = parked + redis.call('ZCARD', key) end
  end
  left = left or parked
  for i = 1, #names, 2 do
    local most = math.min(room, left)
    if most <= 0 then break end
    local key = q.P .. 'groupq:' .. names[i]
    local ids = redis.call('ZRANGE', key, 0, most - 1)
    for _, id in ipairs(ids) do delete(q, d, id) end
    if #ids > 0 then redis.call('ZREM', key, unpack(ids)) end
    room, left = room - #ids, left - #ids
  end
  if left > 0 and room < d.batch then return (scan or '0') .. '|' .. G.int(left) end
  return page[SCAN.cursor] ~= '0' and page[SCAN.cursor] .. '|' or nil
end

-- Jobs that were parked during the stream phase may be in the stream by now.
PHASE.again = function(q, d, position)
  if redis.call('EXISTS', q.ordering) == 0 then return nil end
  return PHASE.stream(q, d, position)
end

local ORDER = { 'suspects', 'stream', 'lifo', 'priority', 'above', 'due', 'below', 'scheduled', 'own', 'groups',
  'fair', 'fairdelayed', 'again' }

-- ------------------------------------------------------------------ the call

-- The next exchange continues the groups: jobs pushed here would go to places that this drain has already passed.
local function continue_groups(q, d)
  local waiting = false
  for name, g in pairs(d.groups) do
    if g.advanced then redis.call('HSET', g.key, 'nextSeq', G.int(g.nextSeq)) end
    M.skip_marked(g)
    if redis.call('ZCARD', g.queue) > 0 then
      redis.call('ZADD', q.ratelimited, 'NX', G.int(d.now), name)
      waiting = true
    end
  end
  if waiting then G.wake(q, 1) end
end

local function next_cursor(d, phase, position)
  if position then return phase .. ':' .. position end
  return ORDER[d.number + 1] and ORDER[d.number + 1] .. ':' or ''
end

-- Delete one batch; r as for `drain`. Return the number of deleted jobs, and the cursor.
G.drain_some = function(q, r)
  local phase, position = string.match(r.cursor, '^(%l+):(.*)$')
  local d = { delayed = r.delayed, batch = r.batch, now = G.now(q), ids = {}, groups = {}, number = 1 }
  for i, name in ipairs(ORDER) do
    if name == phase then d.number = i end
  end
  local cursor
  -- An empty source does not need a call of its own.
  local ok, failure = pcall(function()
    for number = d.number, #ORDER do
      d.number, phase = number, ORDER[number]
      cursor = next_cursor(d, phase, PHASE[phase](q, d, position or ''))
      position = ''
      if cursor == '' or #d.ids > 0 or string.sub(cursor, -1) ~= ':' then return end
    end
  end)
  -- If a source cannot be read the call fails, after the jobs removed from other sources are deleted.
  G.purge(q, d.ids)
  G.budgets.delete(q, d.ids)
  continue_groups(q, d)
  if not ok then error(failure, 0) end
  local total = r.total + #d.ids
  if cursor == '' and total > 0 then G.emit(q.events, 'drained', G.int(total)) end
  return #d.ids, cursor
end

G.export('drain', { 'allow-oom' }, G.for_operators(function(q, r)
  local deleted, cursor = G.drain_some(q, r)
  return G.replies.drain({ deleted = deleted, cursor = cursor })
end))
