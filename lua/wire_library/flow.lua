-- glidemq_addFlow: add a parent and its children.
-- KEYS 1..4 parent id, stream, scheduled, events; then the same four for each child's queue
--   ARGV 1 name, 2 data, 3 opts JSON, 4 timestamp ms, 5 delay, 6 priority, 7 max attempts, 8 number of children, 9
--   custom id; each child: name, data, opts, delay, priority, max attempts, P without its colon, parent queue name,
--   custom id; then the number of extra deps and their members
--   -> JSON text ["parent", "child", ...] | ["duplicate"] | ["ERR:ID_EXHAUSTED"]; 'ERR:COST_EXCEEDS_CAPACITY' is plain
--   errors: OOM; CROSSSLOT if a child's queue is in another slot of a cluster
-- Everything is checked and every id is issued before the first job is written. Bound: the children given.
local W = G.W

local PARENT_ARGS, CHILD_ARGS = 9, 9

local function number(n) return G.num(tonumber(n)) end

local function milli(n) return math.floor(number(n) * 1000) end

-- Group, cost, ttl and lifo are part of the options here.
local function read_options(s, opts)
  local o = G.json(opts)
  local ordering = type(o.ordering) == 'table' and o.ordering or {}
  local rate = type(ordering.rateLimit) == 'table' and ordering.rateLimit or {}
  local bucket = type(ordering.tokenBucket) == 'table' and ordering.tokenBucket or {}
  s.group = type(ordering.key) == 'string' and G.given(ordering.key) or nil
  s.concurrency = number(ordering.concurrency)
  s.rate_max, s.rate_duration = number(rate.max), number(rate.duration)
  s.tb_capacity, s.tb_rate = milli(bucket.capacity), milli(bucket.refillRate)
  s.cost, s.ttl = milli(o.cost), number(o.ttl)
  s.lifo = o.lifo == true
  return s
end

local function parent_spec(A)
  local s = read_options(W.spec({ name = A[1], data = A[2], opts = A[3], timestamp = A[4], delay = A[5],
    priority = A[6], max_attempts = A[7], id = A[9] }), A[3])
  s.lifo = false
  return s
end

local function child_spec(A, i)
  local b = PARENT_ARGS + CHILD_ARGS * (i - 1)
  return read_options(W.spec({ name = A[b + 1], data = A[b + 2], opts = A[b + 3], timestamp = A[4], delay = A[b + 4],
    priority = A[b + 5], max_attempts = A[b + 6], parent_queue = A[b + 8], id = A[b + 9] }), A[b + 3])
end

-- Ids issued by this call, by queue.
local function issued_ids()
  local by_queue = {}
  return function(q)
    by_queue[q.P] = by_queue[q.P] or {}
    return by_queue[q.P]
  end
end

local function custom_ids_free(jobs, taken)
  for _, job in ipairs(jobs) do
    local id = job.s.id
    if id then
      if taken(job.q)[id] or G.exists(job.q, id) then return false end
      taken(job.q)[id] = true
    end
  end
  return true
end

local function issue_ids(jobs, taken)
  for _, job in ipairs(jobs) do
    if job.s.id then
      job.id = job.s.id
      W.advance_counter(job.q.id, job.id)
    else
      job.id = W.next_id(job.q, taken(job.q))
      if not job.id then return false end
      taken(job.q)[job.id] = true
    end
  end
  return true
end

-- A parent sets the concurrency of its group; a child sets it only if it is not set.
local function join_group(q, s, is_parent)
  if not s.group then return 0 end
  local key, width = q.P .. 'group:' .. s.group, G.text(s.concurrency > 0 and s.concurrency or 1)
  if is_parent then
    redis.call('HSET', key, 'maxConcurrency', width)
    redis.call('HSETNX', key, 'active', '0')
  else
    redis.call('HSETNX', key, 'maxConcurrency', width)
  end
  redis.call('HSETNX', key, 'nextSeq', '1')
  if s.rate_max > 0 then W.set_rate(key, s.rate_max, s.rate_duration) end
  if s.tb_capacity > 0 then W.set_bucket(key, s.tb_capacity, s.tb_rate, s.timestamp) end
  return W.next_seq(q, s.group)
end

local function costs_fit(jobs)
  local p = jobs[1].s
  if p.group and p.tb_capacity > 0 and p.cost > p.tb_capacity then return false end
  for i = 2, #jobs do
    if W.too_costly(jobs[i].s) then return false end
  end
  return true
end

local function write(jobs, members)
  local parent = jobs[1]
  local deps = parent.q.P .. 'deps:' .. parent.id
  W.write_job(parent.q, parent.id, parent.s, join_group(parent.q, parent.s, true), 'waiting-children', '')
  G.flows.wait(parent.q, parent.id, parent.s.timestamp)
  for i = 2, #jobs do
    local child = jobs[i]
    child.s.parent_id = parent.id
    W.enqueue(child.q, child.id, child.s, join_group(child.q, child.s, false))
    redis.call('SADD', deps, child.q.P .. child.id)
  end
  for _, member in ipairs(members) do redis.call('SADD', deps, member) end
  G.emit(parent.q.events, 'added', parent.id, 'name', parent.s.name)
end

G.export('addFlow', {}, function(keys, args)
  local children = math.min(G.num(args[8]), math.floor(#keys / 4) - 1)
  local jobs, taken = { { q = W.queue(keys[1], 'id'), s = parent_spec(args) } }, issued_ids()
  for i = 1, children do
    jobs[i + 1] = { q = W.queue(keys[4 * i + 1], 'id'), s = child_spec(args, i) }
  end
  local members, last = {}, PARENT_ARGS + CHILD_ARGS * children + 1
  for i = 1, math.min(G.num(args[last]), #args - last) do members[i] = args[last + i] end
  if not costs_fit(jobs) then return 'ERR:COST_EXCEEDS_CAPACITY' end
  if not custom_ids_free(jobs, taken) then return '["duplicate"]' end
  if not issue_ids(jobs, taken) then return '["ERR:ID_EXHAUSTED"]' end
  write(jobs, members)
  local ids = {}
  for i = 1, #jobs do ids[i] = jobs[i].id end
  return cjson.encode(ids)
end)
