-- Children tell their parents how they ended (docs/reference/functions.md, "Flows"), and parents go on.
-- `deps:<parent>` holds the members (`P` and id) of all children, `depdone:<member>` in the parent's record counts each
-- once, `depvals:<parent>` keeps what it brought: 'v' and its result, or 'f' and why it failed.
local F = G.flows

F.COMPLETED, F.FAILED, F.REMOVED, F.AGAIN = 'completed', 'failed', 'removed', 'again'

local DEPTH_MAX = 8 -- parents that fail with their children's failing parents, in one call
local CHILD_FAILED = 'ChildFailedError'

-- What a failure means for the parents: 'fail_parent', 'ignore' or 'remove'. Where the job does not say it, each face
-- has its own answer: false = the parents are not told, as the protocol has it (W43).
F.policy = function(opts)
  local given = nil
  if opts and string.find(opts, '"onFailure"', 1, true) then
    local ok, parsed = pcall(cjson.decode, opts)
    given = ok and type(parsed) == 'table' and parsed.onFailure
  end
  if given == 'fail_parent' or given == 'ignore' or given == 'remove' then return given end
  return F.default_policy or false
end

-- ------------------------------------------------------------------ in the parent's queue

local function open_children(q, id, done) return redis.call('SCARD', q.P .. 'deps:' .. id) - done end

F.open = function(q, id) return open_children(q, id, G.count_of(redis.call('HGET', q.J .. id, 'depsCompleted'))) end

-- The parent waits: its record is written by the caller.
F.wait = function(q, id, now) redis.call('ZADD', q.waiting_children, G.int(now), id) end

-- When it may run: a parent that has not begun yet has its delay before it, from now on.
local function due_of(h, now)
  if h.processedOn then return nil end
  local delay = G.duration(h.delay)
  if h.notBefore then
    local at = G.clamped_time(h.notBefore)
    return at > now and at or nil
  end
  return delay > 0 and now + delay or nil
end

-- All its children have ended: the parent goes where its own options say (W51). It takes its turn in its group only
-- now, since its children may be of the same group.
F.release = function(q, id, now)
  local key = q.J .. id
  local h = G.pick(key, 'name', 'priority', 'lifo', 'delay', 'notBefore', 'processedOn', 'groupKey', 'orderingSeq')
  local state, entry = G.place(q, now, {
    id = id, name = h.name or '', priority = G.count_of(h.priority), lifo = h.lifo == '1' and not h.groupKey,
    due = due_of(h, now),
  })
  -- A retry may have written that it holds no slot, before it ever had a turn: it joins once all the same.
  if h.groupKey and not h.orderingSeq then G.groups.rejoin(q, id, h) end
  redis.call('HSET', key, 'state', state, 'eid', entry)
  redis.call('ZREM', q.waiting_children, id)
  G.emit(q.events, 'active', id)
end

-- A parent whose children have all ended goes on, but not before all of its flow is there (flow_add.lua): until
-- then the set of its children may be short.
local function go_on(q, id, open, now)
  if open > 0 then return end
  if redis.call('HEXISTS', q.J .. id, 'building') == 0 then F.release(q, id, now) end
end

-- The child and what began it all: the levels between would add up, in a deep flow to more than the jobs themselves.
local function reason_of(member, text)
  return 'child ' .. member .. ' failed: ' .. (string.match(text, '^child .- failed: (child .- failed: .*)$') or text)
end

-- One that waits fails at once; one that is elsewhere fails when it wants to wait (finish_children.lua).
local function fail_parent(q, id, state, member, text, now)
  local reason = reason_of(member, text)
  local key = q.J .. id
  if state ~= 'waiting-children' then
    if not G.TERMINAL[state] then redis.call('HSETNX', key, 'childFailed', reason) end
    return
  end
  local h = G.pick(key, 'state', 'groupKey', 'orderingSeq', 'slot', 'processedOn')
  redis.call('ZREM', q.waiting_children, id)
  G.end_failed(q, id, now, reason, 'failed', h.processedOn)
  redis.call('HSET', key, 'failedType', CHILD_FAILED)
  if h.groupKey then G.groups.leave_group(q, id, h, now) end
  G.retain_failed(q, id, now)
end

-- A failed child is tried once more: it counts as open again.
local function count_again(q, id, member)
  local key, brought = q.J .. id, q.P .. 'depvals:' .. id
  if string.sub(redis.call('HGET', brought, member) or '', 1, 1) ~= 'f' then return end
  redis.call('HDEL', brought, member)
  if redis.call('HDEL', key, 'depdone:' .. member) == 0 then return end
  if G.bump(key, 'depsCompleted', -1) < 0 then redis.call('HSET', key, 'depsCompleted', '0') end
end

-- The child's failure counts as if there had been no such child.
local function forget_child(q, id, member, state, now)
  if redis.call('HSETNX', q.J .. id, 'depdone:' .. member, '0') == 0 then return end
  local known = redis.call('SREM', q.P .. 'deps:' .. id, member) == 1
  -- One that the set does not have yet is counted, since the set is still to get it.
  if not known and redis.call('HEXISTS', q.J .. id, 'building') == 1 then
    G.bump(q.J .. id, 'depsCompleted')
  end
  if state == 'waiting-children' then go_on(q, id, F.open(q, id), now) end
end

-- The child is counted; how many are.
local function count(q, id, member, state, brought, now, elsewhere)
  if elsewhere then redis.call('SADD', q.P .. 'deps:' .. id, member) end
  local done = G.bump(q.J .. id, 'depsCompleted')
  -- A parent of a peer's flow stands in no index; from now on it is looked after (features/flows/functions/flow_watch.lua).
  if done == 1 and state == 'waiting-children' then redis.call('ZADD', q.waiting_children, 'NX', G.int(now), id) end
  if brought then redis.call('HSET', q.P .. 'depvals:' .. id, member, brought) end
  return done
end

-- The parent `id` of this queue hears of the child `member`. how: see above; text: its result, or why it failed.
-- elsewhere: the child is of another queue, and perhaps not in the set yet.
F.told = function(q, id, member, how, text, policy, now, elsewhere)
  local key = q.J .. id
  local found = redis.pcall('HGET', key, 'state')
  local state = type(found) == 'string' and found
  if not state then return end -- a parent that is gone does not come back as a ghost
  if how == F.AGAIN then return count_again(q, id, member) end
  local failed = how ~= F.COMPLETED
  if failed and policy == 'remove' then return forget_child(q, id, member, state, now) end
  if redis.call('HSETNX', key, 'depdone:' .. member, '1') == 0 then return end
  local done = count(q, id, member, state, text and (failed and 'f' or 'v') .. text, now, elsewhere)
  if failed and policy == 'fail_parent' then return fail_parent(q, id, state, member, text, now) end
  if state == 'waiting-children' then go_on(q, id, open_children(q, id, done), now) end
end

-- ------------------------------------------------------------------ in the child's queue

-- `P` of a queue that is named in a record of this one.
F.P_of = function(q, name) return string.match(q.P, '^(.-){') .. '{' .. name .. '}:' end

-- Members of `parents` are split at the last colon (W51).
F.parents_of = function(q, id, h)
  local parents = {}
  if h.parentId and h.parentQueue then parents[1] = { F.P_of(q, h.parentQueue), h.parentId } end
  if not h.parentIds then return parents end
  for _, member in ipairs(redis.call('SMEMBERS', q.P .. 'parents:' .. id)) do
    local P, parent = string.match(member, '^(.*:)([^:]*)$')
    if P then parents[#parents + 1] = { P, parent } end
  end
  return parents
end

-- Whether one call could touch the queue `P` as well: always on one server, in a cluster where the slots are the same.
F.is_reachable = function(q, P)
  if P == q.P then return true end
  local known = rawget(q, 'reachable')
  if not known then
    known = {}
    rawset(q, 'reachable', known)
  end
  if known[P] == nil then known[P] = type(redis.pcall('EXISTS', P .. 'meta')) == 'number' end
  return known[P]
end

-- A child whose parents stand in other slots. A Node worker that ends it tells nobody, so it is remembered until its end
-- has been told (features/flows/functions/remote_parents.lua). members: `P` and id of each such parent.
F.remember_remote = function(q, id, members)
  if #members > 0 then redis.call('HSET', q.remote_parents, id, cjson.encode(members)) end
end

-- `P` and id of the parents that no call of this queue can reach.
F.remote_of = function(q, parents)
  local remote = {}
  for _, parent in ipairs(parents) do
    if not F.is_reachable(q, parent[1]) then remote[#remote + 1] = parent[1] .. parent[2] end
  end
  return remote
end

-- A parent in another queue is told by whoever empties the outbox: no call may leave its slot (W44, W45). Returns whether
-- it will be.
F.tell_by_outbox = function(q, P, parent, member, how, text, policy)
  G.outbox_put(q, 'child', 'to', P, 'parent', parent, 'child', member, 'how', how, 'text', text, 'policy', policy or '')
  return true
end

-- The end of a child has been told; one that is tried again will end once more.
local function forget_remote(q, id, parents, how)
  if how == F.AGAIN then
    F.remember_remote(q, id, F.remote_of(q, parents))
  else
    redis.call('HDEL', q.remote_parents, id)
  end
end

-- All parents of a job hear how it ended. To be called while its record is there. The wire face has its own way to
-- parents elsewhere.
F.child_ended = function(q, id, how, text, now, h)
  h = h or G.pick(q.J .. id, 'parentId', 'parentQueue', 'parentIds', 'opts')
  if not h.parentId and not h.parentIds then return end
  local policy = 'fail_parent' -- no matter to one that has completed
  if how ~= F.COMPLETED then policy = F.policy(h.opts) end
  if not policy then return end
  local depth = rawget(q, 'flow_depth') or 0
  rawset(q, 'flow_depth', depth + 1)
  local parents, elsewhere, untold = F.parents_of(q, id, h), false, false
  for _, parent in ipairs(parents) do
    if parent[1] == q.P and depth < DEPTH_MAX then
      F.told(q, parent[2], q.P .. id, how, text, policy, now)
    else
      elsewhere = elsewhere or parent[1] ~= q.P
      local tell = F.tell_elsewhere or F.tell_by_outbox
      if not tell(q, parent[1], parent[2], q.P .. id, how, text, policy, now) then untold = true end
    end
  end
  rawset(q, 'flow_depth', depth)
  if elsewhere and not untold then forget_remote(q, id, parents, how) end
end
