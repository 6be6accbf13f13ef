-- Steps: the stored parts of a handler (docs/learn/steps.md). `steps` of a job's record is the number of the last one, and
-- `step:<number>` one step: `<when it was stored, epoch ms> <how often> <state> <facts, JSON>`, a newline,
-- and its result as it is encoded. `awaits` is `<fence> <signal>`: the attempt with this fence ended to wait for that signal
-- until the job is due. `requeues` counts the requeues that deleted them.

local M = G.steps
local STEPS_MAX = 1000
local FEATURE = 'steps:0.2.0'
local NO_END = {}
local NUMBER = G.rows.stored_step.number
-- States of a step that a retry runs again; the second ones only if they have failed the job.
local UNFINISHED, EXPIRED = { failed = true, retrying = true }, { failed = true, retrying = true, expired = true }

-- Store a step, or its new state. A copy of an earlier call, which arrives late, changes nothing. The first step of a job ends
-- its ttl. step: a row stored_step; steps, before: of the record.
local function store(q, id, now, step, steps, before)
  local number, version, text = unpack(step)
  local key, field = q.J .. id, 'step:' .. G.int(number)
  if before and G.count_of(G.match(before, '^%d+ (%d+)')) >= version then return end
  text = G.int(now) .. ' ' .. G.int(version) .. ' ' .. text
  if steps and G.count_of(steps) >= number then
    redis.call('HSET', key, field, text)
    return
  end
  redis.call('HSET', key, 'steps', G.int(number), field, text)
  if steps then return end
  G.use_feature(q, FEATURE)
  redis.call('HDEL', key, 'expireAt')
end

-- The same, with the report of an attempt.
M.store = function(q, id, now, step)
  store(q, id, now, step, unpack(redis.call('HMGET', q.J .. id, 'steps', 'step:' .. G.int(step[NUMBER]))))
end

-- The same, given a row attempt_step, if the attempt with this token is the current one. Return the status.
M.store_of_attempt = function(q, now, row)
  local id, fence, processed_on, step = unpack(row)
  local state, job_fence, job_processed_on, steps, before =
    unpack(redis.call('HMGET', q.J .. id, 'state', 'fence', 'processedOn', 'steps', 'step:' .. G.int(step[NUMBER])))
  local rejected = G.check_attempt(fence, processed_on, NO_END, state, job_fence, job_processed_on)
  if rejected then return rejected end
  store(q, id, now, step, steps, before)
  return G.OK
end

local function last_of(steps) return math.min(G.count_of(steps), STEPS_MAX) end

local function names_of(last)
  local names = {}
  for n = 1, last do names[n] = 'step:' .. G.int(n) end
  return names
end

-- Return the texts of the steps, false for those that a retry has deleted, behind the value of `steps`; and their bytes.
M.read = function(q, id, steps)
  local last = last_of(steps)
  if last == 0 then return { steps }, 0 end
  local found, bytes = { steps, unpack(redis.call('HMGET', q.J .. id, unpack(names_of(last)))) }, 0
  for i = 2, #found do bytes = bytes + (found[i] and #found[i] or 0) end
  return found, bytes
end

-- An ended job is requeued. all: delete all its steps; else those without a result.
M.requeue = function(q, id, all)
  local key = q.J .. id
  if all then redis.call('HINCRBY', key, 'requeues', 1) end
  local steps = redis.call('HGET', key, 'steps')
  if not steps then return end
  local last = last_of(steps)
  local names = names_of(last)
  local texts = last > 0 and redis.call('HMGET', key, unpack(names)) or {}
  local deleted, ended = {}, redis.call('HGET', key, 'failedType') == 'SignalTimeout' and EXPIRED or UNFINISHED
  for n = 1, last do
    if all or ended[G.match(texts[n], '^%d+ %d+ (%a+)') or ''] then deleted[#deleted + 1] = names[n] end
  end
  if all then deleted[#deleted + 1] = 'steps' end
  if #deleted > 0 then redis.call('HDEL', key, unpack(deleted)) end
end

-- The attempt with this fence ends until a signal of this name comes, or the job is due.
M.await = function(q, id, fence, name) redis.call('HSET', q.J .. id, 'awaits', G.int(fence) .. ' ' .. name) end

-- Return whether a delayed job waits for a signal of this name. h: the fields of G.job_of.
M.awaits = function(q, id, h, name)
  return h.state == 'delayed' and redis.call('HGET', q.J .. id, 'awaits') == G.int(G.count_of(h.fence)) .. ' ' .. name
end
