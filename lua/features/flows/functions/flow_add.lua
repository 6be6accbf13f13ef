-- flow_add: add jobs of a flow, parents before their children, in one step.
-- KEYS 1 meta   ARGV 1 packed {token, number, rows, deps, ready, quiet, budget, flow, mark, layout}
-- -> packed {now, ids, rejected}
--   row: as in `add`, with a 13th element {inner 0|1, multi 0|1, parents}: inner = it waits for its children; multi =
--   it is written as a job that may have several parents; parent: number of a row of this call, or {id, queue name}
--   token '': the whole flow is in this call. If a custom id exists or a cost is too high, nothing is written; rejected
--   = {number of the row, 'duplicate' | 'cost'}
--   else one step of a flow (flow_stage.lua): `number` counts the steps, and a finished step is not repeated. Its ids
--   were reserved. If another job has got a custom id since, the first step is rejected and with it the flow, of which
--   no job exists yet; in a later step the job becomes a failed child. If the flow was withdrawn, each step is
--   rejected; rejected = {1, 'withdrawn'}
--   deps: {parent id, members} of this queue's parents, written before any of these children may run
--   ready: ids of this queue's parents, in the last step: all deps of all of them are written
--   budget, whose key every job gets: false, {id of the root or '' = the first row, flat fields} to create it, or {key,
--   false}
--   flow: id of the record of the whole flow, which every job gets; false for none
--   mark: absent or false, or evidence of this step for a durable add, see features/durability/functions/durability.lua
--   layout: number of the layout of the queue's partitions by which the jobs of a whole flow were routed, 0 = it has none;
--   absent or false = not checked, as in steps, whose ids were reserved
-- errors: ERR layout (the partition has another layout; nothing was added), OOM (not allow-oom: a full server rejects new
-- jobs). Bound: the rows and members given.
local A = G.adding

local JOB, LINKS, PARENT, NEW_BUDGET = G.rows.flow_job, G.rows.flow_links, G.rows.parent, G.rows.new_budget
local DEPS, ID, FLOW, PARENTS = G.rows.parent_children, JOB.id, JOB.flow, LINKS.parents
local MARK_MS = 604800000 -- an interrupted flow is completed within a week; later, started jobs of a step may run twice

local function name_of(q) return string.match(q.P, '{(.*)}:$') end

-- Return why the whole flow cannot be added: the row `refused`.
local function whole_flow_reject_reason(q, rows)
  local given = {}
  for i, row in ipairs(rows) do
    local id = row[ID]
    if id and id ~= '' then
      if given[id] or G.exists(q, id) then return G.new.refused({ row = i, reason = 'duplicate' }) end
      given[id] = true
    end
    if row[JOB.ordering] and A.too_costly(q, row[JOB.ordering]) then
      return G.new.refused({ row = i, reason = 'cost' })
    end
  end
  return nil
end

local function ids_of(q, rows)
  local ids, next_auto = {}, 0
  for _, row in ipairs(rows) do
    if row[ID] and row[ID] ~= '' then G.advance_counter(q, row[ID]) end
  end
  local auto = A.issue_ids(q, rows)
  for i, row in ipairs(rows) do
    if row[ID] and row[ID] ~= '' then
      ids[i] = row[ID]
    else
      next_auto = next_auto + 1
      ids[i] = auto and auto[next_auto] or A.next_free_id(q)
    end
  end
  return ids
end

-- ------------------------------------------------------------------ writing

-- f: q, now, quiet, ids, members (of parents in this call), budget, flow, generation (of all its parents)
-- Return the parents, and the ids of those in this call.
local function parents_of(f, row)
  local found, here = {}, {}
  for i, parent in ipairs(row[FLOW][PARENTS]) do
    if type(parent) == 'number' then
      found[i] = G.new.parent({ id = f.ids[parent], queue = name_of(f.q), generation = f.generation })
      here[#here + 1] = f.ids[parent]
    else
      found[i] = parent
    end
  end
  return found, here
end

local function fields_of(f, id, row, parents)
  local q, extra = f.q, {}
  local remote = A.remote_parents(q, parents)
  if #parents > 0 and (row[FLOW][LINKS.multi] == 1 or #remote > 0) then
    extra = A.several_parents(q, id, parents, remote, f.generation)
  elseif #parents > 0 then
    extra = A.one_parent(q, G.first(parents), f.generation)
  end
  if row[FLOW][LINKS.inner] == 1 then
    G.append(extra, 'generation', f.generation)
    if f.token ~= '' then G.append(extra, 'building', f.token) end
  end
  if f.budget then G.append(extra, 'budgetKey', f.budget) end
  if f.flow then G.append(extra, 'flowId', f.flow) end
  return extra
end

local function write(f, id, row)
  local q, parents, here = f.q, parents_of(f, row)
  A.full(q, f.now, f.quiet, id, row, fields_of(f, id, row, parents), row[FLOW][LINKS.inner] == 1)
  if #parents > 0 then G.flows.note_policy(q, row[JOB.opts]) end
  for _, parent in ipairs(here) do
    local members = f.members[parent] or {}
    f.members[parent] = members
    members[#members + 1] = q.P .. id
  end
end

-- A parent that was deleted meanwhile, or whose id belongs to another job, gets no children.
local function write_deps(q, token, deps)
  for _, dep in ipairs(deps) do
    local parent = dep[DEPS.parent]
    if redis.call('HGET', q.J .. parent, 'building') == token then A.write_children(q, parent, dep[DEPS.members]) end
  end
end

-- Return 'ours' if this flow has already added the job, in a step whose mark has expired; 'taken' if it is another job;
-- nil if there is no job with this id.
local function existing_job(q, token, row)
  if not G.exists(q, row[ID]) then return nil end
  local parent = G.first(row[FLOW][PARENTS])
  local id, queue = unpack(parent or { '', '' })
  local member = G.flows.P_of(q, queue) .. id
  local building, of_parent, of_queue, generation = unpack(G.pcall('HMGET', q.J .. row[ID], 'building', 'parentId',
    'parentQueue', G.flows.link(member)))
  if building == token then return 'ours' end
  if not parent or generation and generation ~= token then return 'taken' end
  if of_parent == id and of_queue == queue then return 'ours' end
  return G.pcall('SISMEMBER', q.P .. 'parents:' .. row[ID], member) == 1 and 'ours' or 'taken'
end

-- Return the first row of a step whose id now belongs to another job; nil = none.
local function taken_row(q, token, rows)
  for i, row in ipairs(rows) do
    if existing_job(q, token, row) == 'taken' then return i end
  end
  return nil
end

-- The id now belongs to another job: the parents must not wait for that one.
local function reject_child(f, id, row)
  for _, parent in ipairs(row[FLOW][PARENTS]) do
    local h = { parentId = parent[PARENT.id], parentQueue = parent[PARENT.queue], opts = row[JOB.opts],
      generation = f.generation }
    G.flows.child_ended(f.q, id, G.flows.REMOVED, 'there is a job of this id already', f.now, h)
  end
end

local function write_rows(f, rows)
  for i, row in ipairs(rows) do
    local existing = f.token ~= '' and existing_job(f.q, f.token, row)
    if existing == 'taken' then reject_child(f, row[ID], row) end
    if not existing then write(f, f.ids[i], row) end
  end
end

local function write_budget(f, budget)
  if not budget then return end
  local root, fields = budget[NEW_BUDGET.root], budget[NEW_BUDGET.fields]
  if fields then
    f.budget = G.budgets.create(f.q, root ~= '' and root or G.first(f.ids), fields)
  else
    f.budget = root
  end
end

local function make_ready(q, token, ids, now)
  for _, id in ipairs(ids) do
    local h = G.pick(q.J .. id, 'state', 'building')
    if h.building == token then
      redis.call('HDEL', q.J .. id, 'building')
      if h.state == 'waiting-children' and G.flows.open(q, id) <= 0 then G.flows.release(q, id, now) end
    end
  end
end

-- Return why nothing can be added: the row `refused`; nil = no reason.
local function reject_reason(q, token, number, rows)
  if token == '' then return whole_flow_reject_reason(q, rows) end
  local taken = number == 1 and taken_row(q, token, rows)
  return taken and G.new.refused({ row = taken, reason = 'duplicate' }) or nil
end

-- The counter that issued the ids may have been lost since; it must not issue them again.
local function reserved_ids(q, rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row[ID] end
  if #ids > 0 then G.advance_counter(q, ids[#ids]) end
  return ids
end

-- Set the ids of the rows, and the generation of the parents among them.
local function identify(f, rows)
  if f.token == '' then
    f.ids, f.generation = ids_of(f.q, rows), G.flows.new_generation(f.q)
  else
    f.ids, f.generation = reserved_ids(f.q, rows), f.token
  end
end

local function reply(now, ids, refused) return { now = now, ids = ids, refused = refused } end

G.export('flow_add', {}, function(q, r)
  local outdated = G.layout.check(q, r.layout)
  if outdated then return outdated end
  local token, number, rows, now = r.token, r.number, r.rows, G.now(q)
  local f = { q = q, now = now, token = token, quiet = r.quiet, flow = r.flow, members = {} }
  local mark = q.P .. 'flow-mark:' .. token
  local done = token ~= '' and G.num(redis.call('GET', mark)) or -1
  if done >= G.flows.WITHDRAWN_MARK then return reply(now, {}, G.new.refused({ row = 1, reason = 'withdrawn' })) end
  if done >= number then
    return reply(now, {}, false)
  end
  local rejected = reject_reason(q, token, number, rows)
  if rejected then return reply(now, {}, rejected) end
  identify(f, rows)
  write_budget(f, r.budget)
  write_rows(f, rows)
  write_deps(q, token, r.deps)
  for parent, members in pairs(f.members) do A.write_children(q, parent, members) end
  make_ready(q, token, r.ready, now)
  if token ~= '' then
    redis.call('SET', mark, G.int(number), 'PX', MARK_MS)
    G.record_temporary(q, 'flow-mark:' .. token, now, MARK_MS)
  end
  if r.mark then G.mark_durable(q, r.mark) end
  return reply(now, token == '' and f.ids or {}, false)
end)
