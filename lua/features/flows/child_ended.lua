-- Notify the parents of a job that has ended (docs/reference/functions.md, "Flows"). Those in this queue are notified
-- directly, within the limits of a call; the others through the outbox.
local F = G.flows

local DEPTH_MAX = 8 -- parents failed by failing children, levels per call
local PARENTS_A_CALL = 1000 -- notified directly; the others by later calls (many_parents.lua)

-- Return `P` of a queue named in a record of this queue.
F.P_of = function(q, name) return string.match(q.P, '^(.-){') .. '{' .. name .. '}:' end

-- Return how many more parents this call may notify: {left}. Shared with the queues that it reaches.
local function budget_of(q)
  return G.once(q, 'parents_budget', function() return { left = PARENTS_A_CALL } end)
end

-- Return a queue that this call reaches from `q`, with the limits of this call.
F.reached = function(q, P)
  local other = G.queue(P .. 'meta')
  other.flow_depth = rawget(q, 'flow_depth')
  other.parents_budget = budget_of(q)
  return other
end

-- Return whether this call may notify one more parent directly.
F.may_notify = function(q)
  local budget = budget_of(q)
  if (rawget(q, 'flow_depth') or 0) > DEPTH_MAX or budget.left <= 0 then return false end
  budget.left = budget.left - 1
  return true
end

-- A link names an id and a generation, so that a later job with the id of a removed parent gets no results of its
-- children. The record of a parent has the field `generation`, that of its child the field of F.link. Peers write
-- neither: a link without a generation is accepted.

-- Return the field of a child's record for the generation of its parent `member` (`P` and id).
F.link = function(member) return 'parentGeneration:' .. member end

-- Return the generation of the parents that this call writes.
F.new_generation = function(q)
  return G.once(q, 'generation', function() return G.int(G.now(q)) .. '-' .. G.int(G.bump(q.meta, 'generations')) end)
end

-- Return the generation of an existing job of this queue, which gets one if it has none.
F.generation = function(q, id)
  local generation = redis.call('HGET', q.J .. id, 'generation')
  if not generation then
    generation = F.new_generation(q)
    G.set(q, id, 'generation', generation)
  end
  return generation
end

-- Add the generations of parents, from the record of their child unless `generation` is given. Return the parents.
F.with_generations = function(q, id, parents, generation)
  local fields = {}
  for i, parent in ipairs(parents) do fields[i] = F.link(parent.P .. parent.id) end
  local found = #fields > 0 and G.pcall('HMGET', q.J .. id, unpack(fields)) or {}
  for i, parent in ipairs(parents) do parent.generation = generation or found[i] or nil end
  return parents
end

-- Return `P` and id of a parent, by name. A member is split at its last colon.
F.parent_of = function(member)
  local P, parent = string.match(member, '^(.*:)([^:]*)$')
  return P and { P = P, id = parent } or nil
end

-- Return `P`, id and generation of the parents. The second value is true if the members of `parents` are to be notified by
-- later calls: they are too many for this one, or later calls still notify them of an earlier result.
local function parents_of(q, id, h)
  local parents = {}
  if h.parentId and h.parentQueue then parents = { { P = F.P_of(q, h.parentQueue), id = h.parentId } } end
  local left = budget_of(q).left
  local members = h.parentIds and redis.call('SRANDMEMBER', q.P .. 'parents:' .. id, left + 1) or {}
  local later = #members > left or h.parentIds and redis.call('EXISTS', q.P .. 'parents-left:' .. id) == 1
  if not later then
    for _, member in ipairs(members) do parents[#parents + 1] = F.parent_of(member) end
  end
  return F.with_generations(q, id, parents, h.generation), later
end

-- Return whether this call could use the queue `P` as well: always on one server, in a cluster if the slots are the
-- same. (A user without permission for its keys cannot use it either.)
F.is_reachable = function(q, P)
  return P == q.P or G.once(q, 'reachable ' .. P, function() return type(redis.pcall('EXISTS', P .. 'meta')) == 'number' end)
end

-- Record a child whose parents are in other slots until they are notified: a Node worker that ends it does not notify
-- them (features/flows/functions/remote_parents.lua). members: `P` and id of each such parent.
F.record_remote = function(q, id, members)
  if #members > 0 then redis.call('HSET', q.remote_parents, id, cjson.encode(members)) end
end

-- Return `P` and id of the parents that no call of this queue can reach.
F.remote_of = function(q, parents)
  local remote = {}
  for _, parent in ipairs(parents) do
    if not F.is_reachable(q, parent.P) then remote[#remote + 1] = parent.P .. parent.id end
  end
  return remote
end

-- Notify a parent in another queue through the outbox: no call may leave its slot. Return whether it will be notified.
F.notify_by_outbox = function(q, parent, member, how, text, policy)
  G.outbox_put(q, 'child', 'to', parent.P, 'parent', parent.id, 'child', member, 'how', how, 'text', text, 'policy',
    policy or '', 'generation', parent.generation or '')
  return true
end

-- The parents of a child are notified; a child that is retried will end again.
local function delete_remote(q, id, parents, how)
  if how == F.RETRIED then
    F.record_remote(q, id, F.remote_of(q, parents))
  else
    redis.call('HDEL', q.remote_parents, id)
  end
end

-- Notify the parents, or let others do so. Return whether a parent is in another queue, and whether one will not be
-- notified.
local function notify_each(q, parents, depth, member, how, text, policy, now)
  local in_other_queue, unnotified = false, false
  for i, parent in ipairs(parents) do
    -- The single parent of a reported job is always notified: the caller bounds the number of jobs.
    local directly = depth == 0 and i == 1 or F.may_notify(q)
    if parent.P == q.P and directly then
      F.record_child_end(q, parent, member, how, text, policy, now)
    else
      in_other_queue = in_other_queue or parent.P ~= q.P
      local notify = F.notify_other_queue or F.notify_by_outbox
      if not notify(q, parent, member, how, text, policy, now) then unnotified = true end
    end
  end
  return in_other_queue, unnotified
end

-- Notify all parents of a job how it ended. To be called while its record exists. The wire library notifies parents in
-- other queues in its own way.
F.child_ended = function(q, id, how, text, now, h)
  h = h or G.pick(q.J .. id, 'parentId', 'parentQueue', 'parentIds', 'opts', 'jobBatch')
  if not h.parentId and not h.parentIds then return end
  -- The wire library does not report to batches: workers of this library check them (batch_watch).
  if h.jobBatch and G.batches.job_ended then G.batches.job_ended(q, id, h.jobBatch, how, now) end
  local policy = 'fail_parent' -- unused for a completed child
  if how ~= F.COMPLETED then policy = F.policy(h.opts) end
  if not policy then return end
  local depth = rawget(q, 'flow_depth') or 0
  q.flow_depth = depth + 1
  local parents, later = parents_of(q, id, h)
  local in_other_queue, unnotified = notify_each(q, parents, depth, q.P .. id, how, text, policy, now)
  q.flow_depth = depth
  if later then
    F.notify_later(q, id, how, text, policy)
  elseif in_other_queue and not unnotified then
    delete_remote(q, id, parents, how)
  end
end
