-- drain: delete the waiting jobs and all their keys, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {delayed, cursor, batch, total}   -> packed {deleted, cursor}
-- cursor: '' at first, then the cursor of the previous reply; '' in the reply = the end
-- total: deleted by the previous calls. The last call writes one event for all of them, as peers do (jobId = count).
-- Deletes ready jobs (stream, lists, due members of the scheduled set, parked jobs of groups) and, with `delayed`,
-- delayed jobs too. Active jobs stay. Each phase ends at the end that its source had when the phase began, so that
-- producers cannot prolong it. Bound: `batch` jobs, 512 groups and 256 priorities per call.

local STREAM_ENTRY = G.rows.stream_entry
local M = G.groups
local BANDS_A_CALL, GROUPS_A_SCAN = 256, 100
local LISTS = { lifo = true, priority = true }

-- d: the deleted jobs, and the groups whose turns and slots became free.
local function group_of(q, d, name)
  d.groups[name] = d.groups[name] or M.group(q, name)
  return d.groups[name]
end

local function delete(q, d, id)
  local ok, h = G.attempt(G.pick, q.J .. id, 'state', 'groupKey', 'orderingSeq', 'slot', 'parentId',
    'parentQueue', 'parentIds', 'opts', 'jobBatch')
  if not ok or not G.NOT_STARTED[h.state] then return end
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

-- ---------------------------------------------------------------- phases: (q, d, position) -> next position, or nil

local PHASE = {}

-- position: how many of those present at first are left. Return the next one.
local function rest(left, done) return done > 0 and left > done and G.int(left - done) or nil end

-- The jobs of a list or a sorted set; if they are delayed, only with `delayed`. position: see `rest`.
local function place(field, is_delayed)
  local is_list = LISTS[field]
  return function(q, d, position)
    if is_delayed and not d.delayed then return nil end
    local key = q[field]
    local left = tonumber(position) or redis.call(is_list and 'LLEN' or 'ZCARD', key)
    local most = math.min(left, d.batch) - 1
    local members = left > 0 and redis.call(is_list and 'LRANGE' or 'ZRANGE', key, 0, most) or {}
    for _, member in ipairs(members) do delete(q, d, G.job_of_member(q, key, member)) end
    if is_list then
      redis.call('LTRIM', key, #members, -1)
    elseif #members > 0 then
      redis.call('ZREM', key, unpack(members))
    end
    return rest(left, #members)
  end
end
PHASE.suspects, PHASE.lifo, PHASE.priority = place('suspects'), place('lifo'), place('priority')
PHASE.above, PHASE.below, PHASE.own = place('ranked_above'), place('ranked_below'), place('delayed_own', true)
PHASE.scheduled, PHASE.fairdelayed = place('scheduled', true), place('fair_delayed', true)

-- position: the entry read last, and the entry to end with.
PHASE.stream = function(q, d, position)
  local after, till = string.match(position, '^(.-)|(.*)$')
  if not till then
    local last = G.first(redis.call('XREVRANGE', q.stream, '+', '-', 'COUNT', 1))
    if not last then return nil end
    after, till = '', last[STREAM_ENTRY.id]
  end
  local page = redis.call('XRANGE', q.stream, G.after(after), till, 'COUNT', d.batch)
  if #page == 0 then return nil end
  G.delete_unclaimed(q, G.GROUP, page, function(id) delete(q, d, id) end)
  local last = page[#page][STREAM_ENTRY.id]
  return #page == d.batch and last ~= till and last .. '|' .. till or nil
end

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
    for _, member in ipairs(due) do delete(q, d, G.job_of_member(q, q.scheduled, member)) end
    if #due > 0 then redis.call('ZREM', q.scheduled, unpack(due)) end
    room, left = room - #due, left - #due
    if #due == limit then break end
    band = band + 1
  end
  return G.int(band) .. '|' .. G.int(left)
end

-- position: see `rest`.
PHASE.fair = function(q, d, position)
  if not G.fair.used(q) then return nil end
  local left = tonumber(position) or G.fair.waiting(q)
  local ids = left > 0 and G.fair.take_some(q, math.min(left, d.batch)) or {}
  for _, id in ipairs(ids) do delete(q, d, id) end
  return rest(left, #ids)
end

-- Parked jobs. position: the cursor of the group scan, and how many of the jobs parked at first are left.
PHASE.groups = function(q, d, position)
  local scan, left = string.match(position, '^(%d*)|(%d*)$')
  local names, after = G.scan('HSCAN', q.ordering, scan or '', GROUPS_A_SCAN)
  local parked, room = 0, d.batch
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
  if left > 0 and room < d.batch then return (scan or '') .. '|' .. G.int(left) end
  return after ~= '' and after .. '|' or nil
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
  return { deleted = deleted, cursor = cursor }
end))
