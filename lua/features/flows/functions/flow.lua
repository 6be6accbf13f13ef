-- Connect parents and children, across queues (docs/reference/functions.md, "Flows").
-- children_ended: deliver results of children in other queues, from the outbox of their queue.
--   KEYS 1 meta   ARGV 1 packed rows {parent id, member, how, text, policy, generation of the parent or '' = any}
--   -> packed 1 if this queue's outbox has entries now
-- notify_parents: continue to notify the parents of children with very many (many_parents.lua).   KEYS 1 meta
--   -> 1 = call again, 0 = all are notified. Bound: 500 parents.
-- add_remote_children: let a parent wait for children in other queues that have just been added.
--   KEYS 1 meta   ARGV 1 packed {parent id, members, generation}   -> 'ok' and the generation of the parent, or 'gone',
--   'completed' or 'failed' (nothing is changed)
--   generation: of the parent, from an earlier reply; '' = any. The client reads it without members, before it adds the children
-- open_children: KEYS 1 meta   ARGV 1 parent id   -> packed {number of unfinished children, failure reason of a child
-- that fails its parent or false}
-- sweep_parents: remove parents from the index that no longer wait: Node's own library releases them without updating
-- it. KEYS 1 meta   -> 1 if there may be many more, else 0. Bound: 500 parents.
-- children: return a page of a parent's children.   KEYS 1 meta   ARGV 1 packed {parent id, cursor, count}
--   -> packed {rows, cursor}   row: {member, '' | 'd' ended, no result stored | 'v' and its result | 'f' and its
--   failure reason | 'm' stored, but not returned because the page is full}   cursor '' = the end; a child may be
--   returned twice.
-- flow_nodes: return records of jobs by their ids.   KEYS 1 meta   ARGV 1 packed {ids, fields}   -> packed rows {number of
-- children, values}; false for a missing job. Bound: the ids.
local CHILD_OUTCOME = G.rows.child_outcome
local F = G.flows

-- A job without an explicit policy fails its parents, so that no parent waits forever.
F.default_policy = 'fail_parent'

-- Size of a sample, number of samples per call, and the number of removed parents from which another sample is read.
local SAMPLE, SAMPLES_MAX, AGAIN_FROM = 100, 5, 5
local PAGE_BYTES = 1048576

-- Return whether the rest of the parent's flow is still to be added. False if no step was done for so long that the
-- mark has expired (flow_stage.lua).
F.is_building = function(q, id, token)
  if not token then return false end
  if redis.call('EXISTS', q.P .. 'flow-mark:' .. token) == 1 then return true end
  redis.call('HDEL', q.J .. id, 'building')
  return false
end

-- Remove the parent from the index if it no longer waits. A parent that a Node peer released or removed has stopped
-- waiting, and a parent without open children is released. `h`: its state and `building`. Return whether it was
-- removed.
F.sweep_parent = function(q, id, h, now)
  if h.state ~= 'waiting-children' then
    redis.call('ZREM', q.waiting_children, id)
    return true
  end
  if F.is_building(q, id, h.building) or F.open(q, id) > 0 then return false end
  F.release(q, id, now)
  return true
end

local function state_of(q, id)
  local state, building = unpack(G.pcall('HMGET', q.J .. id, 'state', 'building'))
  return { state = state or nil, building = building or nil }
end

-- Remove parents that no longer wait from the index, by random samples: another one while many of a sample were
-- removed. Return whether there may be many more. An index of up to SAMPLE parents is read completely.
F.sweep_parents = function(q, now)
  for _ = 1, SAMPLES_MAX do
    local sample, removed = redis.call('ZRANDMEMBER', q.waiting_children, SAMPLE), 0
    for _, id in ipairs(sample) do
      if F.sweep_parent(q, id, state_of(q, id), now) then removed = removed + 1 end
    end
    if #sample < SAMPLE or removed < AGAIN_FROM then return false end
  end
  return true
end

G.export('sweep_parents', { 'allow-oom' }, function(q)
  if redis.call('EXISTS', q.waiting_children) == 0 then return 0 end
  return F.sweep_parents(q, G.now(q)) and 1 or 0
end)

G.export('children_ended', { 'allow-oom' }, function(q, r)
  local now = G.now(q)
  for _, row in ipairs(r.outcomes) do
    local member = row[CHILD_OUTCOME.member]
    local parent = { id = row[CHILD_OUTCOME.parent], generation = row[CHILD_OUTCOME.generation] }
    F.record_child_end(q, parent, member, row[CHILD_OUTCOME.how], row[CHILD_OUTCOME.text], row[CHILD_OUTCOME.policy],
      now, member ~= q.P .. (string.match(member, '([^:]*)$')))
  end
  return G.outbox_pending(q) and 1 or 0
end)

G.export('notify_parents', { 'allow-oom' }, function(q)
  return F.notify_more(q, G.now(q)) and 1 or 0
end)

G.export('add_remote_children', { 'allow-oom' }, function(q, r)
  local h, members = G.pick(q.J .. r.parent, 'state', 'generation'), {}
  if not h.state or r.generation ~= '' and r.generation ~= h.generation then return 'gone' end
  if G.TERMINAL[h.state] then return h.state end
  for _, member in ipairs(r.members) do
    -- A child that has ended is already counted, or is not to be counted.
    if redis.call('HEXISTS', q.J .. r.parent, 'depdone:' .. member) == 0 then members[#members + 1] = member end
  end
  G.adding.write_children(q, r.parent, members)
  return 'ok ' .. F.generation(q, r.parent)
end)

G.export('open_children', { 'no-writes' }, function(q, r)
  local id = r.parent
  return {
    number = math.max(0, F.open(q, id)), failure = redis.call('HGET', q.J .. id, 'childFailed'),
  }
end)

G.export('children', { 'no-writes' }, function(q, r)
  local id, rows, bytes = r.parent, {}, 0
  local found, after = G.scan('SSCAN', q.P .. 'deps:' .. id, r.cursor, r.count)
  for _, member in ipairs(found) do
    local room = bytes < PAGE_BYTES
    local stored = redis.call(room and 'HGET' or 'HEXISTS', q.P .. 'depvals:' .. id, member)
    if not room then stored = stored == 1 and 'm' end
    if stored then bytes = bytes + #stored end
    if not stored and redis.call('HEXISTS', q.J .. id, 'depdone:' .. member) == 1 then stored = 'd' end
    rows[#rows + 1] = G.new.child({ member = member, outcome = stored or '' })
  end
  return { rows = rows, cursor = after }
end)

G.export('flow_nodes', { 'no-writes' }, function(q, r)
  local rows = {}
  for i, id in ipairs(r.ids) do
    local values = G.pcall('HMGET', q.J .. id, unpack(r.fields))
    rows[i] = not values.err and G.exists(q, id)
      and G.new.relative({ children = redis.call('SCARD', q.P .. 'deps:' .. id), values = values }) or false
  end
  return rows
end)
