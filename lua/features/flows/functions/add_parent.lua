-- Add children to existing parents: rows of `add` with a parent {id, queue name}. A parent in this queue gets its child
-- in the same step. A parent in another queue is informed of the child by a separate call (`add_remote_children`),
-- and of the child's result through the outbox.
-- Also defines the parent fields of a record, used here and in features/flows/functions/flow_add.lua.
local A = G.adding
local F = G.flows
local PARENT, ORDERING = G.rows.parent, G.rows.ordering
local ID, QUEUE = PARENT.id, PARENT.queue

local function is_ours(q, parent) return F.P_of(q, parent[QUEUE]) == q.P end

local LEVELS_MAX = 20

local function read_parent(q, id) return G.pick(q.J .. id, 'state', 'groupKey', 'orderingSeq', 'parentId', 'parentQueue') end

-- Return whether a job of the ordering group would wait for the turn of a job that waits for it: the parent, or one
-- above it in this queue. A parent that has not run yet gets its turn when its children have ended. h: of the parent.
local function waits_for_turn(q, h, ordering)
  for _ = 1, LEVELS_MAX do
    if not ordering or not h.state or G.TERMINAL[h.state] then return false end
    if h.groupKey == ordering[ORDERING.group] and G.count_of(h.orderingSeq) > 0 then
      local given = ordering[ORDERING.concurrency] or 0
      return (given > 0 and given or G.groups.group(q, h.groupKey).maxConcurrency) == 1
    end
    if not h.parentId or F.P_of(q, h.parentQueue or '') ~= q.P then return false end
    h = read_parent(q, h.parentId)
  end
  return false
end

-- Return why a job can have no such child: 'gone', the parent's state if it has ended, or 'ordering' if the child would
-- wait for its parent's turn. ordering: of the child, if it has one.
A.invalid_parent = function(q, parent, ordering)
  if not is_ours(q, parent) then return nil end
  local h = read_parent(q, parent[ID])
  if not h.state then return 'gone' end
  if G.TERMINAL[h.state] then return h.state end
  return waits_for_turn(q, h, ordering) and 'ordering' or nil
end

-- Return `P` and id of the parents in another slot of a cluster.
A.remote_parents = function(q, parents)
  local pairs_of = {}
  for i, parent in ipairs(parents) do pairs_of[i] = { P = F.P_of(q, parent[QUEUE]), id = parent[ID] } end
  return F.remote_of(q, pairs_of)
end

-- Return the fields of a job that is written like one with several parents: jobs of graphs, and in a cluster jobs with
-- a parent in another slot. A Node worker completes a job with `parentId` by a call that declares the parent's keys,
-- which the server rejects across slots. remote: the result of A.remote_parents. generation: of the parents.
A.several_parents = function(q, id, parents, remote, generation)
  local ids, queues, members = {}, {}, {}
  for i, parent in ipairs(parents) do
    ids[i], queues[i] = parent[ID], parent[QUEUE]
    members[i] = F.P_of(q, parent[QUEUE]) .. parent[ID]
  end
  G.mark_side_keys(q)
  redis.call('SADD', q.P .. 'parents:' .. id, unpack(members))
  F.record_remote(q, id, remote)
  local fields = { 'parentIds', cjson.encode(ids), 'parentQueues', cjson.encode(queues) }
  for _, member in ipairs(generation and members or {}) do
    G.append(fields, F.link(member), generation)
  end
  return fields
end

-- Return the fields of a job with one parent. generation: of the parent; nil = unknown.
A.one_parent = function(q, parent, generation)
  return { 'parentId', parent[ID], 'parentQueue', parent[QUEUE],
    generation and F.link(F.P_of(q, parent[QUEUE]) .. parent[ID]), generation }
end

-- Record the queues in other slots that hold children of this queue's parents: its workers check them
-- (remote_parents.lua).
A.record_remote_children = function(q, members)
  local seen = {}
  for _, member in ipairs(members) do
    local P = string.match(member, '^(.*:)[^:]*$')
    if P and not seen[P] then
      seen[P] = true
      if not F.is_reachable(q, P) then redis.call('ZADD', q.remote_children, G.int(G.now(q)), P) end
    end
  end
end

-- Add the children (members) to the set of the parent `id` of this queue.
A.write_children = function(q, id, members)
  G.mark_side_keys(q)
  A.record_remote_children(q, members)
  G.in_parts('SADD', q.P .. 'deps:' .. id, members)
end

-- Add the child to its parent's set, and return the fields of its record.
A.attach_child = function(q, id, parent, opts)
  F.note_policy(q, opts)
  local generation = parent[PARENT.generation]
  if is_ours(q, parent) then
    generation = F.generation(q, parent[ID])
    A.write_children(q, parent[ID], { q.P .. id })
  end
  local remote = A.remote_parents(q, { parent })
  if #remote > 0 then return A.several_parents(q, id, { parent }, remote, generation) end
  return A.one_parent(q, parent, generation)
end
