-- Add children to existing parents: rows of `add` with a parent {id, queue name}. A parent in this queue gets its child
-- in the same step. A parent in another queue is informed of the child by a separate call (`add_remote_children`),
-- and of the child's result through the outbox.
-- Also defines the parent fields of a record, used here and in features/flows/functions/flow_add.lua.
local A = G.adding
local F = G.flows
local PARENT = G.rows.parent
local ID, QUEUE = PARENT.id, PARENT.queue

local function is_ours(q, parent) return F.P_of(q, parent[QUEUE]) == q.P end

-- Return why the job can have no children: 'gone', or its state if it has ended.
A.invalid_parent = function(q, parent)
  if not is_ours(q, parent) then return nil end
  local state = redis.call('HGET', q.J .. parent[ID], 'state')
  if not state then return 'gone' end
  return G.TERMINAL[state] and state or nil
end

-- Return `P` and id of the parents in another slot of a cluster.
A.remote_parents = function(q, parents)
  local pairs_of = {}
  for i, parent in ipairs(parents) do pairs_of[i] = { P = F.P_of(q, parent[QUEUE]), id = parent[ID] } end
  return F.remote_of(q, pairs_of)
end

-- Return the fields of a job that is written like one with several parents: jobs of graphs, and in a cluster jobs with
-- a parent in another slot. A Node worker completes a job with `parentId` by a call that declares the parent's keys,
-- which the server rejects across slots. remote: the result of A.remote_parents.
A.several_parents = function(q, id, parents, remote)
  local ids, queues, members = {}, {}, {}
  for i, parent in ipairs(parents) do
    ids[i], queues[i] = parent[ID], parent[QUEUE]
    members[i] = F.P_of(q, parent[QUEUE]) .. parent[ID]
  end
  G.mark_side_keys(q)
  redis.call('SADD', q.P .. 'parents:' .. id, unpack(members))
  F.record_remote(q, id, remote)
  return { 'parentIds', cjson.encode(ids), 'parentQueues', cjson.encode(queues) }
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

-- Add the child to its parent's set, and return the fields of its record.
A.attach_child = function(q, id, parent, opts)
  G.flows.note_policy(q, opts)
  if is_ours(q, parent) then
    G.mark_side_keys(q)
    redis.call('SADD', q.P .. 'deps:' .. parent[ID], q.P .. id)
  end
  local remote = A.remote_parents(q, { parent })
  if #remote > 0 then return A.several_parents(q, id, { parent }, remote) end
  return { 'parentId', parent[ID], 'parentQueue', parent[QUEUE] }
end
