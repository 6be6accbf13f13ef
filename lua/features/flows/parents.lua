-- Record results of children in their parents (docs/reference/functions.md, "Flows"), and release the parents.
-- `deps:<parent>` holds the members (`P` and id) of all children, `depdone:<member>` in the parent's record counts each
-- once, `depvals:<parent>` stores the outcome: 'v' and the result, or 'f' and the failure reason.
local F = G.flows

F.COMPLETED, F.FAILED, F.REMOVED, F.RETRIED = 'completed', 'failed', 'removed', 'again'
F.WITHDRAWN_MARK = 9007199254740991 -- instead of the number of a step: no step is executed any more

local CHILDREN_COUNTED = 1000
local CHILD_FAILED = 'ChildFailedError'
local POLICIES = { fail_parent = true, ignore = true, remove = true, wait = true }

-- Return the effect of a failure on the parents: 'fail_parent', 'ignore', 'remove' or 'wait'. If the job sets no policy, each
-- library has its default: false = the parents are not notified, as the protocol requires.
F.policy = function(opts)
  local given = nil
  if opts and string.find(opts, '"onFailure"', 1, true) then
    given = G.json(opts).onFailure
  end
  if POLICIES[given] then return given end
  return F.default_policy or false
end

local function open_children(q, id, done) return redis.call('SCARD', q.P .. 'deps:' .. id) - done end

-- Count the children that have ended, of a parent whose counter is unusable. With more than CHILDREN_COUNTED children,
-- only those with a stored outcome are counted: all that this library has notified.
local function recount(q, id)
  local deps, done = q.P .. 'deps:' .. id, 0
  if redis.call('SCARD', deps) > CHILDREN_COUNTED then return redis.call('HLEN', q.P .. 'depvals:' .. id) end
  for _, member in ipairs(redis.call('SMEMBERS', deps)) do
    done = done + redis.call('HEXISTS', q.J .. id, 'depdone:' .. member)
  end
  return done
end

F.open = function(q, id)
  local stored = redis.call('HGET', q.J .. id, 'depsCompleted')
  local done = G.count_of(stored, -1)
  return open_children(q, id, done >= 0 and done or stored and recount(q, id) or 0)
end

-- Add to the number of ended children, after `depdone` is written. Return it.
local function add_done(q, id, by)
  local key = q.J .. id
  local done = G.pcall('HINCRBY', key, 'depsCompleted', by)
  if not G.must_restart(done) and done >= 0 then return done end
  done = recount(q, id)
  redis.call('HSET', key, 'depsCompleted', G.int(done))
  return done
end

-- Put the parent into the index of waiting parents. The caller writes its record.
F.wait = function(q, id, now) redis.call('ZADD', q.waiting_children, G.int(now), id) end

-- Return when the parent may run: its delay starts now if it has not run yet.
local function due_of(h, now)
  if h.processedOn then return nil end
  local delay = G.duration(h.delay)
  if h.notBefore then
    local at = G.clamped_time(h.notBefore)
    return at > now and at or nil
  end
  return delay > 0 and now + delay or nil
end

-- Release a parent whose children have all ended to the place given by its own options. It gets its turn in its
-- ordering group only now, since its children may be in the same group.
F.release = function(q, id, now)
  local key = q.J .. id
  local h = G.pick(key, 'name', 'priority', 'lifo', 'delay', 'notBefore', 'processedOn', 'groupKey', 'orderingSeq', 'rank',
    'fairKey')
  G.put(q, id, now, h, due_of(h, now), true)
  -- A retry may have written that the job has no slot before it ever had a turn: it joins once.
  if h.groupKey and not h.orderingSeq then G.groups.rejoin(q, id, h) end
  redis.call('ZREM', q.waiting_children, id)
  G.emit(q.events, 'active', id)
end

-- Release a parent whose children have all ended, unless part of its flow is still to be added (flow_add.lua): until
-- then the set of its children may be incomplete.
local function release_if_done(q, id, open, now)
  if open > 0 then return end
  if redis.call('HEXISTS', q.J .. id, 'building') == 0 then F.release(q, id, now) end
end

local NAMES = { child = true, dependency = true }

-- Return the text after 'child <member> failed: ' or 'dependency <member> failed: '; nil if it begins otherwise.
local function cause_of(text)
  local name, cause = string.match(text, '^(%l+) .- failed: (.*)$')
  return NAMES[name] and cause
end

-- Name the child or dependency and the original cause only: the levels between would grow in a deep flow to more than
-- the jobs themselves.
local function reason_of(member, text, is_dependency)
  local cause = cause_of(text)
  if cause and cause_of(cause) then text = cause end
  return (is_dependency and 'dependency ' or 'child ') .. member .. ' failed: ' .. text
end

-- A waiting parent fails now; any other fails when it starts to wait (finish_children.lua).
local function fail_parent(q, id, state, member, text, now, is_dependency)
  local reason = reason_of(member, text, is_dependency)
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

-- A failed child is retried: it counts as open again.
local function reopen_child(q, id, member)
  local key, outcome = q.J .. id, q.P .. 'depvals:' .. id
  if string.sub(redis.call('HGET', outcome, member) or '', 1, 1) ~= 'f' then return end
  redis.call('HDEL', outcome, member)
  if redis.call('HDEL', key, 'depdone:' .. member) == 1 then add_done(q, id, -1) end
end

-- Ignore the child's failure as if there had been no such child.
F.ignore_child = function(q, id, member, state, now)
  if redis.call('HSETNX', q.J .. id, 'depdone:' .. member, '0') == 0 then return end
  local known = redis.call('SREM', q.P .. 'deps:' .. id, member) == 1
  -- A child that is not in the set yet is counted, since the set is still to be completed.
  if not known and redis.call('HEXISTS', q.J .. id, 'building') == 1 then
    add_done(q, id, 1)
  end
  if state == 'waiting-children' then release_if_done(q, id, F.open(q, id), now) end
end

-- Count the child. Return how many are counted.
local function count(q, id, member, state, outcome, now, in_other_queue)
  if in_other_queue then redis.call('SADD', q.P .. 'deps:' .. id, member) end
  if in_other_queue or outcome then G.mark_side_keys(q) end
  local done = add_done(q, id, 1)
  -- A parent of a peer's flow is in no index; from now on it is watched (features/flows/functions/flow_watch.lua).
  if done == 1 and state == 'waiting-children' then redis.call('ZADD', q.waiting_children, 'NX', G.int(now), id) end
  if outcome then redis.call('HSET', q.P .. 'depvals:' .. id, member, outcome) end
  return done
end

-- A build without this feature fails the parent of a child with the policy 'wait'.
F.note_policy = function(q, opts)
  if string.find(opts or '', '"onFailure":"wait"', 1, true) then G.use_feature(q, G.dependencies.FEATURE) end
end

-- Policy 'wait': the failure is stored, and the job waits for a retry or the removal of the dependency. A child becomes a
-- dependency, so that the policy is known after the child was deleted.
local function note_failed_dependency(q, id, member, state, text)
  if state ~= 'waiting-children' or redis.call('HEXISTS', q.J .. id, 'depdone:' .. member) == 1 then return end
  redis.call('HSET', q.P .. 'depvals:' .. id, member, 'f' .. text)
  if redis.call('HSETNX', q.J .. id, G.dependencies.field(member), 'wait') == 1 then
    G.use_feature(q, G.dependencies.FEATURE)
  end
end

-- Return the state of the parent, and its policy for the dependency `member`; nil if it is gone, or a later job has its id.
local function read_parent(q, parent, member)
  local found = G.pcall('HMGET', q.J .. parent.id, 'state', G.dependencies.field(member), 'generation')
  local state, policy, generation = unpack(found)
  if found.err or G.given(parent.generation) and parent.generation ~= generation then return nil end
  return state, policy
end

-- Record in the parent (id, generation) of this queue that the child `member` has ended. how: see above; text: its
-- result or failure reason. in_other_queue: the child is in another queue, and perhaps not in the set yet.
local function record_child_end(q, parent, member, how, text, policy, now, in_other_queue)
  local id, key = parent.id, q.J .. parent.id
  local state, own_policy = read_parent(q, parent, member)
  if not state then return end -- a deleted parent must not come back as a ghost
  if how == F.RETRIED then return reopen_child(q, id, member) end
  policy = how ~= F.COMPLETED and (own_policy or policy)
  if policy == 'wait' then return note_failed_dependency(q, id, member, state, text) end
  if policy == 'remove' then return F.ignore_child(q, id, member, state, now) end
  if redis.call('HSETNX', key, 'depdone:' .. member, '1') == 0 then return end
  local outcome = text and (how == F.COMPLETED and 'v' or 'f') .. text
  local done = count(q, id, member, state, outcome, now, in_other_queue)
  if policy == 'fail_parent' then return fail_parent(q, id, state, member, text, now, own_policy) end
  if state == 'waiting-children' then release_if_done(q, id, open_children(q, id, done), now) end
end

-- The same for a parent that may be a batch, which this library only writes as `batch:<id>` (features/job_batches).
F.record_child_end = function(q, parent, member, how, ...)
  local batch = G.batches.record and string.match(parent.id, '^batch:(.*)$')
  if batch then return G.batches.record(q, batch, member, how, (select(3, ...)), parent.generation) end
  return record_child_end(q, parent, member, how, ...)
end
