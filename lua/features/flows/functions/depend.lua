-- Let a new job wait for jobs that exist: rows of `add` with dependencies {policy, refs, generation}. In the records, the waiting
-- job is a parent and its dependencies are children. The policy for a failed dependency is that of the waiting job
-- (parents.lua): 'wait', 'fail_parent', 'ignore' or 'remove'. refs: flat queue names ('' = this queue) and ids.
-- generation: of the waiting job, chosen by the client if it registers the job in other queues.
-- A dependency in this queue is checked and registered in the step that adds the job. For those in other queues the
-- client calls `depend` before the add, to check them, and after it, to register the job there. If it stops between,
-- the job waits, and `watch_children` reads the outcomes of the dependencies.
-- depend: register waiting jobs with jobs of this queue.   KEYS 1 meta   ARGV 1 packed rows {waiting, ids, generation}
--   waiting: `P` and id of a waiting job; '' = only check the ids   generation: of the waiting job, '' = unknown
--   -> packed rows {how, text}, one per id of each row: 'open' (registered), 'completed' and the result, 'failed' and the reason
--   (registered, a retry notifies the waiting job), or 'gone'. Bound: the ids.
-- add_dependency: let a job that has not started wait for one that exists.   KEYS 1 meta   ARGV 1 packed {id, member, policy}
--   -> 'ok' and the generation of the job | 'gone' (no such job) | 'unknown' (no such job to wait for, in this queue) |
--   'held' or 'lost' (the place of the job cannot be left) | 'ordered' (it has a turn in an ordering group) | its state, if
--   it has started
--   A job to wait for in another queue is checked by `depend` before, and registered by it afterwards.
--   Bound: core/find_waiting.lua.
-- remove_dependency: let a job no longer wait for another one.   KEYS 1 meta   ARGV 1 packed {id, member}
--   -> 'ok' | 'gone' (no such job) | 'unknown' (not a dependency of it) | 'done' (it has ended or was removed before)
--   Bound: constant.
-- withdraw_dependent: delete a job whose dependency was removed between check and registration, if it has not started.
--   KEYS 1 meta   ARGV 1 id   -> 1 deleted, 0 it does not wait (any more). Bound: constant.
local A = G.adding
local F = G.flows
local D = G.dependencies

local JOB, DEPENDENCIES, DEPENDING = G.rows.new_job, G.rows.dependencies, G.rows.depending
-- Return the members {P and id} of the dependencies, and the ids of those in this queue.
local function members_of(q, dependencies)
  local refs, members, here = dependencies[DEPENDENCIES.refs], {}, {}
  for i = 1, #refs, 2 do
    local queue, id = refs[i], refs[i + 1]
    local P = queue == '' and q.P or F.P_of(q, queue)
    members[#members + 1] = P .. id
    if P == q.P then here[#here + 1] = id end
  end
  return members, here
end

-- Return the id of a dependency in this queue that does not exist; nil if there is none.
A.unknown_dependency = function(q, dependencies)
  local _, here = members_of(q, dependencies)
  for _, id in ipairs(here) do
    if not G.exists(q, id) then return id end
  end
  return nil
end

-- Let the end of the job `id` notify the waiting job.
local function register(q, id, P, waiting, generation)
  D.register(q, id, P .. waiting, generation)
  if P ~= q.P then
    local members = G.json(redis.call('HGET', q.remote_parents, id))
    for _, member in ipairs(F.remote_of(q, { { P = P, id = waiting } })) do members[#members + 1] = member end
    F.record_remote(q, id, members)
  end
end

-- Return 'open', 'completed', 'failed' or 'gone', and the result or reason. Register the waiting job if it may be
-- notified later.
local function answer(q, id, P, waiting, generation)
  local how, text = F.outcome(q, id)
  if how == F.REMOVED then return 'gone', '' end
  if how ~= F.COMPLETED and P then register(q, id, P, waiting, generation) end
  return how or 'open', text or ''
end

-- Add a job with dependencies; all that are in this queue exist. extra: further fields of the record, or nil. behind: id
-- of the started job behind which it is staged (features/deduplication/dedup.lua), or false.
A.add_dependent = function(q, now, quiet, id, row, extra, behind)
  local dependencies, fields = row[JOB.dependencies], extra or {}
  local policy = dependencies[DEPENDENCIES.policy]
  local members, here = members_of(q, dependencies)
  G.use_feature(q, D.FEATURE)
  if behind then fields = { 'stagedBehind', behind } end
  local generation = dependencies[DEPENDENCIES.generation] or F.new_generation(q)
  G.append(fields, 'generation', generation)
  A.full(q, now, quiet, id, row, fields, true)
  for _, member in ipairs(members) do G.set(q, id, D.field(member), policy) end
  if behind then D.attach(q, id, behind, 'ignore') end
  A.write_children(q, id, members)
  for _, dependency in ipairs(here) do
    local how, text = answer(q, dependency, q.P, id, generation)
    if how ~= 'open' then F.record_child_end(q, { id = id }, q.P .. dependency, how, text, policy, now) end
  end
end

G.export('depend', {}, function(q, r)
  local answers = {}
  for _, row in ipairs(r.rows) do
    local P, waiting = string.match(row[DEPENDING.waiting], '^(.*:)([^:]*)$')
    for _, id in ipairs(row[DEPENDING.ids]) do
      local how, text = answer(q, id, P, waiting, row[DEPENDING.generation])
      answers[#answers + 1] = G.new.dependency_answer({ how = how, text = P and text or '' })
    end
  end
  return answers
end)

local SCHEDULED = { prioritized = true, delayed = true }

-- Remove a job that has not started from its place. Return nil, or why that is not possible.
local function leave_place(q, id, h)
  if h.state == 'waiting-children' then return nil end
  if redis.call('HEXISTS', q.J .. id, 'groupKey') == 1 then return 'ordered' end
  if SCHEDULED[h.state] then
    G.leave_scheduled(q, id, h)
    return nil
  end
  if h.state ~= 'waiting' then return h.state end
  local place = G.waiting_place(q, id, h)
  if not place then return 'lost' end
  if place.held then return 'held' end
  G.leave_waiting(q, id, place)
  return nil
end

G.export('add_dependency', { 'allow-oom' }, G.for_operators(function(q, r)
  local id, now, key = r.id, G.now(q), q.J .. r.id
  local h = G.job_of(q, id)
  if not h.state then return 'gone' end
  local here = string.sub(r.member, 1, #q.P) == q.P and string.sub(r.member, #q.P + 1)
  if here and not G.exists(q, here) then return 'unknown' end
  if redis.call('SISMEMBER', q.P .. 'deps:' .. id, r.member) == 1 then return 'ok ' .. F.generation(q, id) end
  local problem = leave_place(q, id, h)
  if problem then return problem end
  G.use_feature(q, D.FEATURE)
  redis.call('HSET', key, 'state', 'waiting-children', 'eid', '', D.field(r.member), r.policy)
  redis.call('HDEL', key, 'depdone:' .. r.member)
  A.write_children(q, id, { r.member })
  F.wait(q, id, now)
  if h.state ~= 'waiting-children' then
    G.note_state(q, id, 'waiting-children')
    G.emit(q.events, 'waiting-children', id)
  end
  local generation = F.generation(q, id)
  if here then
    local how, text = answer(q, here, q.P, id, generation)
    if how ~= 'open' then F.record_child_end(q, { id = id }, r.member, how, text, r.policy, now) end
  end
  return 'ok ' .. generation
end))

G.export('remove_dependency', { 'allow-oom' }, function(q, r)
  local key, now = q.J .. r.id, G.now(q)
  local h = G.pick(key, 'state', D.field(r.member), 'depdone:' .. r.member)
  if not h.state then return 'gone' end
  if not h[D.field(r.member)] and redis.call('SISMEMBER', q.P .. 'deps:' .. r.id, r.member) == 0 then return 'unknown' end
  if h['depdone:' .. r.member] then return 'done' end
  redis.call('HDEL', q.P .. 'depvals:' .. r.id, r.member)
  F.ignore_child(q, r.id, r.member, h.state, now)
  return 'ok'
end)

G.export('withdraw_dependent', { 'allow-oom' }, function(q, r)
  local h = G.pick(q.J .. r.id, 'state', 'processedOn')
  if h.state ~= 'waiting-children' or h.processedOn then return 0 end
  G.remove_job(q, r.id, 'removed')
  return 1
end)
