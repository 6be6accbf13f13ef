-- repair: repair problems found by a consistency check. Each is checked again in the step that repairs it.
-- KEYS 1 meta   ARGV 1 packed rows   -> packed flags, one per row: 1 repaired, 0 already in order or not repairable
-- row: {'member', place, id, entry or member}     remove a wrong member from a place
--      {'twice', id, the place to keep, the other one}   each a stream entry, 'lifo' or 'priority'
--      {'lost', id, mark}     put a job that is in no place into the place of its state
--      {'ghost', id}          delete an incomplete record
--      {'orphan', suffix}     delete a key of a job, staged write, batch or result sequence that does not exist;
--        index an unfinished write or batch
-- A job that is active in no place becomes ready again, its attempt void. Bound: constant per row; a list is searched
-- up to LIST_PAGE members from an end. The caller sends at most 100 rows.

local C = G.checks
local ROW = G.rows.repair
local M = G.groups
local NEVER = 9999999999999
local LIST_PAGE, COPIES_MAX = 10000, 10

local REPAIR = {}
local LISTS = { lifo = true, priority = true }

-- ------------------------------------------------------------------ places

local function from_group(q, name, id, now)
  local g = M.group(q, name)
  local seq = redis.call('ZSCORE', g.queue, id)
  seq = seq and G.count_of(seq)
  redis.call('ZREM', g.queue, id)
  if seq and not G.exists(q, id) then M.mark_skip(g, seq) end
  M.promote_parked(q, g, now)
end

local function delete_dedup(q, now, dedup_id)
  local at = tonumber(redis.call('ZSCORE', q.dedup_expiry, dedup_id))
  if not at or not C.dedup_is_stale(q, dedup_id, at, now) then return 0 end
  redis.call('HDEL', q.dedup, dedup_id)
  return redis.call('ZREM', q.dedup_expiry, dedup_id)
end

local function acknowledge(q, entry)
  if #redis.call('XRANGE', q.stream, entry, entry) > 0 then return 0 end
  return redis.call('XACK', q.stream, G.GROUP, entry)
end

-- Remove the job from a list, `most` times at most. rank: 1 = from the left, -1 = from the right.
local function leave_list(q, place, id, rank, most)
  for removed = 0, most - 1 do
    if not redis.call('LPOS', q.P .. place, id, 'RANK', rank, 'MAXLEN', LIST_PAGE) then return removed end
    redis.call('LREM', q.P .. place, rank, id)
  end
  return most
end

-- Remove the member from a list or a set; `member` is the job's name there.
local function take_out(q, place, id, member, why)
  if why == 'popped' then return G.return_popped(q, id) and 1 or 0 end
  if not LISTS[place] then return redis.call(C.REMOVE[place] or 'ZREM', q.P .. place, member) end
  local most = why == 'twice' and 1 or COPIES_MAX
  local removed = leave_list(q, place, id, 1, most)
  return removed + leave_list(q, place, id, -1, most - removed) > 0 and 1 or 0
end

local function leave_key(q, key, id, member)
  local why = C.mismatch(q, 'fairq', id, member)
  if not why or why == 'foreign' then return 0 end
  G.fair.leave(q, id, key)
  return 1
end

REPAIR.member = function(q, now, place, id, member)
  local key = string.match(place, '^fairq:(.*)$')
  if key then return leave_key(q, key, id, member) end
  if place == 'dedup-expiry' then return delete_dedup(q, now, id) end
  if id == '' then return acknowledge(q, member) end
  local group = string.match(place, '^groupq:(.*)$')
  local why = C.mismatch(q, group and 'groupq' or place, id, member)
  if not why or why == 'foreign' then return 0 end
  if group then
    from_group(q, group, id, now)
  elseif place == 'stream' or place == 'pending' then
    if place == 'stream' and G.is_pending(q, member) then return 0 end
    G.ack_entries(q, { member })
  else
    return take_out(q, place, id, member, why)
  end
  return 1
end

local function is_in(q, id, place, rank)
  if not LISTS[place] then return C.has_entry(q, id, place) and not G.is_pending(q, place) end
  return redis.call('LPOS', q.P .. place, id, 'RANK', rank, 'MAXLEN', LIST_PAGE) and true or false
end

REPAIR.twice = function(q, _, id, kept, other)
  local h = C.read(q, id)
  if not h or h.state ~= 'waiting' or not is_in(q, id, kept, 1) then return 0 end
  if not is_in(q, id, other, kept == other and 2 or 1) then return 0 end
  if LISTS[other] then return leave_list(q, other, id, -1, 1) end
  G.ack_entries(q, { other })
  return 1
end

-- ------------------------------------------------------------------ jobs

local LOST = {}
C.LOST = LOST

local function finished(key)
  return function(q, id, h, now)
    redis.call('ZADD', q[key], G.int(h.finishedOn and G.past_time(h.finishedOn, now) or now), id)
  end
end

LOST.completed, LOST.failed = finished('completed'), finished('failed')

LOST.suspended = function(q, id, h)
  local since, timeout = G.num(h.suspendedAt), G.num(h.suspendTimeout)
  redis.call('ZADD', q.suspended, G.score(timeout > 0 and math.min(since + timeout, NEVER) or NEVER), id)
end

-- The due time is lost; the due time at the add is known.
LOST.delayed = function(q, id, h, now)
  local due = now
  if G.count_of(h.attemptsMade) == 0 then due = math.max(now, G.num(h.timestamp) + G.duration(h.delay)) end
  G.put(q, id, now, h, due)
end

LOST.prioritized = function(q, id, h, now) G.put(q, id, now, h) end

LOST.waiting = function(q, id, h, now)
  if G.waiting_place(q, id, h) then return false end
  G.put(q, id, now, h)
end

LOST['group-waiting'] = function(q, id, h, now)
  local g = M.group(q, h.groupKey or '')
  M.park(q, g, id, h)
  M.promote_parked(q, g, now)
end

LOST['waiting-children'] = function(q, id, _, now) G.flows.release(q, id, now) end

LOST.active = function(q, id, h, now)
  if G.leases.list_again(q, id, h) then return true end
  local entry = G.find_entry(q, id, h.eid, h.timestamp)
  if entry and G.is_pending(q, entry) then return false end
  local g = G.return_job(q, id, now, h)
  if g then M.promote_parked(q, g, now) end
end

REPAIR.lost = function(q, now, id, mark)
  local h = C.read(q, id)
  if not h or C.mark(h) ~= mark or C.is_placed(q, id, h) or not LOST[h.state] then return 0 end
  if LOST[h.state](q, id, h, now) == false then return 0 end
  redis.call('HDEL', q.J .. id, 'restored') -- an interrupted restore must not place it again
  return 1
end

REPAIR.ghost = function(q, _, id)
  local h, why = C.read(q, id)
  if h or why ~= 'ghost' then return 0 end
  redis.call('ZREM', q.list_heartbeats, id)
  G.pcall('SREM', q.list_active_ids, id)
  G.purge(q, { id })
  return 1
end

local SATELLITES = { log = true, depvals = true, deps = true, parents = true, jstream = true, signals = true }

REPAIR.orphan = function(q, now, suffix)
  if string.sub(suffix, 1, 6) == 'write:' then return G.staging.repair(q, suffix, now) end
  if string.sub(suffix, 1, 5) == 'batch' then return G.batches.repair(q, suffix, now) end
  if suffix == 'results' then return G.results.repair(q) end
  local kind, id = string.match(suffix, '^(%l+):(.+)$')
  if not SATELLITES[kind] or G.exists(q, id) then return 0 end
  return redis.call('UNLINK', q.P .. suffix)
end

G.export('repair', { 'allow-oom' }, G.for_operators(function(q, r)
  local rows, flags = r.rows, {}
  local now = G.now(q)
  for i, row in ipairs(rows) do
    flags[i] = REPAIR[row[ROW.kind]](q, now, row[ROW.first], row[ROW.second], row[ROW.third])
  end
  return flags
end))
