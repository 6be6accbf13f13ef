-- Rows of `add` that have a parent: {id, queue name}. A parent in this queue gets its child in the same step; one in
-- another queue hears of it by a call of its own (`adopt`), and of the child's end through the outbox.
local A = G.adding
local ID, QUEUE = 1, 2

local function is_ours(q, parent) return G.flows.P_of(q, parent[QUEUE]) == q.P end

-- Why the job can have no children: 'gone' or the state in which it has ended.
A.unfit_parent = function(q, parent)
  if not is_ours(q, parent) then return nil end
  local state = redis.call('HGET', q.J .. parent[ID], 'state')
  if not state then return 'gone' end
  return G.TERMINAL[state] and state or nil
end

-- The child's place in its parent's set, and the fields of its record.
A.adopt = function(q, id, parent)
  if is_ours(q, parent) then redis.call('SADD', q.P .. 'deps:' .. parent[ID], q.P .. id) end
  return { 'parentId', parent[ID], 'parentQueue', parent[QUEUE] }
end
