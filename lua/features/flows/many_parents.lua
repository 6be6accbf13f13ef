-- Notify parents of a child in later calls: those of a child with more parents than one call may notify, and those that
-- are out of its reach. `parents-left` lists the results to report, in order; `parents-left:<id>` holds the parents of a
-- child that are still to be notified of the first of them.
local F = G.flows

local PARENTS, RESULTS = 500, 50 -- per call
local ROW = G.rows.ended_child
local ID, HOW, TEXT, POLICY, MEMBERS = ROW.id, ROW.how, ROW.text, ROW.policy, ROW.members
local WAITS = 1 -- instead of members: an earlier result of the child is still to be reported

-- Workers of this library read the outbox. Those of another one continue with `promote`.
local function continue_by_outbox(q)
  if rawget(q, 'parents_pending') then return end
  q.parents_pending = true
  G.outbox_put(q, 'parents', 'to', q.P)
end

local function add(q, result)
  redis.call('RPUSH', q.parents_left, cmsgpack.pack(result))
  continue_by_outbox(q)
end

local function is_set(key) return redis.call('TYPE', key).ok == 'set' end

-- Report the result of the child to the members of its `parents`. To be called before its keys are deleted.
F.notify_later = function(q, id, how, text, policy)
  local parents, left, waits = q.P .. 'parents:' .. id, q.P .. 'parents-left:' .. id, false
  if is_set(left) then
    waits = WAITS
  elseif redis.call('EXISTS', parents) == 1 then
    redis.call('RENAME', parents, left)
  end
  add(q, G.new.ended_child({ id = id, how = how, text = text, policy = policy, members = waits }))
end

-- Report the result of the child to one parent.
F.notify_one_later = function(q, id, parent, how, text, policy)
  add(q, G.new.ended_child({ id = id, how = how, text = text, policy = policy, members = { parent.P .. parent.id } }))
end

-- A parent whose key is of a foreign type must not stop the others.
local function notify(q, result, members, now)
  local parents, child = {}, q.P .. result[ID]
  for _, member in ipairs(members) do parents[#parents + 1] = F.parent_of(member) end
  for _, parent in ipairs(F.with_generations(q, result[ID], parents)) do
    local tell = parent.P == q.P and F.record_child_end or F.notify_other_queue or F.notify_by_outbox
    G.attempt(tell, q, parent, child, result[HOW], result[TEXT], result[POLICY], now)
  end
end

-- Return the next members of the result, at most `most`. The child keeps them if it still exists: a retry notifies them
-- again. A key of a foreign type at `parents-left:<id>` is replaced if there are parents, else it has no members.
local function members_of(q, result, most)
  if type(result[MEMBERS]) == 'table' then return result[MEMBERS] end
  local parents, left = q.P .. 'parents:' .. result[ID], q.P .. 'parents-left:' .. result[ID]
  if result[MEMBERS] == WAITS and not is_set(left) and redis.call('EXISTS', parents) == 1 then
    redis.call('RENAME', parents, left)
    result[MEMBERS] = false
    redis.call('LSET', q.parents_left, 0, cmsgpack.pack(result))
  end
  local members = G.pcall('SPOP', left, most)
  if members.err then return {} end
  if #members > 0 and G.exists(q, result[ID]) then G.pcall('SADD', parents, unpack(members)) end
  return members
end

-- Continue. Return whether there may be more.
F.notify_more = function(q, now)
  if redis.call('EXISTS', q.parents_left) == 0 then return false end
  local room = PARENTS
  for _ = 1, RESULTS do
    local packed = G.pcall('LINDEX', q.parents_left, 0)
    if type(packed) ~= 'string' then return false end
    local result = G.unpacked(packed)
    local members = type(result[ID]) == 'string' and members_of(q, result, room) or {}
    if #members > 0 then notify(q, result, members, now) end
    room = room - #members
    if room <= 0 then return true end
    redis.call('LPOP', q.parents_left)
  end
  return true
end
