-- glidemq_removeJob: delete a job.
--   KEYS 1 job, 2 stream, 3 scheduled, 4 completed, 5 failed, 6 events, 7 log   ARGV 1 id   -> 1 | 0
-- glidemq_clean: delete finished jobs.
--   KEYS 1 completed or failed, 2 events, 3 id   ARGV 1 cutoff ms, 2 limit (<= 0 = nothing)   -> ids
-- glidemq_drain: delete waiting jobs.
--   KEYS 1 stream, 2 scheduled, 3 events, 4 id, 5 lifo, 6 priority   ARGV 1 '1' = the scheduled ones too, 2 group   ->
--   jobs deleted; active ones stay
--   Bound: WORK_MAX units per call, a plain job is one: 2,000 plain jobs, 500 with parents or groups. The next call
--   continues.
local W = G.W

local PAGES_MAX = 20
local WORK_MAX, WORK_PAGE, COSTLY = 2000, 250, 4 -- units: one per plain job, COSTLY for one with parents or a group

-- Remove the job from its place: the entry named by its record, or the lists.
local function leave_place(q, id, h)
  if G.given(h.eid) and G.find_entry(q, id, h.eid) then
    G.pcall('XACK', q.stream, G.GROUP, h.eid)
    redis.call('XDEL', q.stream, h.eid)
  elseif h.state == 'active' then
    if W.from_list(h) then G.untrack_list_job(q, id) end
  elseif h.state == 'waiting' then
    local place = G.waiting_place(q, id, { eid = '', lifo = '1' })
    if place then G.leave_waiting(q, id, place) end
  end
end

G.export('removeJob', { 'allow-oom' }, G.for_operators(function(keys, args)
  local id = args[1]
  local q = W.job_queue(keys[1], id)
  local h = G.job_of(q, id)
  if redis.call('EXISTS', keys[1]) == 0 then return 0 end
  leave_place(q, id, h)
  if h.groupKey then redis.call('ZREM', q.P .. 'groupq:' .. h.groupKey, id) end
  for _, key in ipairs({ q.scheduled, q.completed, q.failed, q.suspended, q.waiting_children, q.list_popped,
    q.suspects }) do
    redis.call('ZREM', key, id)
  end
  if not G.TERMINAL[h.state] then
    W.leave_group(q, id, h, 0, true)
    G.flows.child_ended(q, id, G.flows.REMOVED, 'removed', G.now(q))
  end
  G.purge(q, { id })
  G.emit(q.events, 'removed', id)
  return 1
end))

G.export('clean', { 'allow-oom' }, G.for_operators(function(keys, args)
  local q, limit = W.queue(keys[3], 'id'), math.min(math.floor(G.num(args[2])), W.JOBS_A_CALL)
  if limit <= 0 then return {} end
  local ids = redis.call('ZRANGEBYSCORE', keys[1], '-inf', G.score(G.num(args[1])), 'LIMIT', 0, G.int(limit))
  G.purge(q, ids)
  G.in_parts('ZREM', keys[1], ids)
  if #ids > 0 then G.emit(keys[2], 'cleaned', G.int(#ids)) end
  return ids
end))

-- ------------------------------------------------------------------ drain

-- d: number of deleted jobs, units of work, the time, and the groups in whose sequence the jobs leave gaps.
local function delete(q, d, id)
  local h = G.pick(q.J .. id, 'state', 'groupKey', 'orderingSeq', 'slot', 'parentId', 'parentQueue', 'parentIds', 'opts')
  d.work = d.work + ((h.parentId or h.parentIds or h.groupKey) and COSTLY or 1)
  if h.state == 'active' or G.TERMINAL[h.state] then return end
  local name = G.given(h.groupKey)
  if name then
    d.groups[name] = d.groups[name] or W.group(q, name)
    local g = d.groups[name]
    if W.holds_slot(g, h) then W.free_slot(q, g, id, true) else W.mark_skip(g, G.count_of(h.orderingSeq)) end
  end
  G.flows.child_ended(q, id, G.flows.REMOVED, 'drained', d.now, h)
  G.purge(q, { id })
  d.count = d.count + 1
end

local function room(d) return WORK_MAX - d.work end

-- Delete the entries between two ids that no worker has read. Parents that are released meanwhile are behind them.
local function drain_entries(q, d, group, from, to)
  for _ = 1, PAGES_MAX do
    if room(d) <= 0 then return end
    local page = redis.call('XRANGE', q.stream, from, to, 'COUNT', math.min(room(d), WORK_PAGE))
    if #page == 0 then return end
    local work = d.work
    G.delete_unclaimed(q, group, page, function(id) delete(q, d, id) end)
    if d.work == work then return end -- the whole page is being worked on
    from = '(' .. page[#page][1]
  end
end

-- Entries that no worker has read are behind the last delivered one; an entry before it may be a leftover.
local function drain_stream(q, d, group)
  local last = redis.call('XREVRANGE', q.stream, '+', '-', 'COUNT', 1)[1]
  if not last then return end
  drain_entries(q, d, group, '-', last[1])
  local found = G.stream_group(q, group)
  if found then drain_entries(q, d, group, '(' .. found[8], last[1]) end
end

-- Delete jobs in their order until the work of the call is done, and return how many members were examined.
local function delete_each(q, d, members, id_of)
  for number, member in ipairs(members) do
    if room(d) <= 0 then return number - 1 end
    local id = id_of(member)
    if G.exists(q, id) then delete(q, d, id) else d.work = d.work + 1 end
  end
  return #members
end

local function drain_scheduled(q, d)
  local page = room(d) > 0 and redis.call('ZRANGE', q.scheduled, 0, room(d) - 1) or {}
  local examined = delete_each(q, d, page, function(member) return (G.scheduled_job(q, member)) end)
  if examined > 0 then redis.call('ZREM', q.scheduled, unpack(page, 1, examined)) end
end

-- A parent that is released because its last child is deleted may be added to the end of this list.
local function drain_list(q, d, key)
  local ids = room(d) > 0 and redis.call('LRANGE', key, 0, room(d) - 1) or {}
  local examined = delete_each(q, d, ids, function(id) return id end)
  if examined > 0 then redis.call('LTRIM', key, examined, -1) end
end

G.export('drain', { 'allow-oom' }, G.for_operators(function(keys, args)
  local q = W.queue(keys[4], 'id')
  local d = { count = 0, work = 0, groups = {}, now = G.now(q) }
  drain_stream(q, d, args[2] or '')
  if args[1] == '1' then drain_scheduled(q, d) end
  drain_list(q, d, keys[5])
  drain_list(q, d, keys[6])
  for _, g in pairs(d.groups) do W.promote_parked(q, g, 0) end
  if d.count > 0 then G.emit(keys[3], 'drained', G.int(d.count)) end
  return d.count
end))
