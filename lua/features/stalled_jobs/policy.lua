-- The stalled-job policy: how often a job may stall, and how long after the end of its lock it counts as stalled. For a
-- job, the first of these that is set decides (docs/learn/workers.md, "Stalled jobs"): the option of the worker that
-- fetched it (hash `stalled-policies`, since the worker is dead when its jobs are recovered), the policy of the queue
-- (fields of P:meta), the option of the process that recovers it.
-- A member of the hash: `<max stalled>|<grace ms>|<time of the last registration>`, '' = not set by the worker.

G.stalled_policy = {}
local S = G.stalled_policy

local FIELDS = { 'stalledInterval', 'maxStalledCount', 'stalledGrace' }
local AT = G.positions(FIELDS)
local COUNT_MAX = 1000000
local FORGET_MS = 172800000 -- the longest lock and the longest interval are a day each
local SWEEP_SAMPLE = 20

local function number(text, least, most)
  local value = tonumber(text)
  return value and value >= least and value <= most and math.floor(value) or nil
end

local function read_policy(_, q)
  local meta = G.pcall('HMGET', q.meta, unpack(FIELDS))
  return {
    interval = number(meta[AT.stalledInterval], 1000, G.DAY_MS),
    max_stalled = number(meta[AT.maxStalledCount], 0, COUNT_MAX), grace = number(meta[AT.stalledGrace], 0, G.DAY_MS),
  }
end

-- Return the policy of the queue: {interval, max_stalled, grace}, nil for what is not set. run: caches it.
S.of_queue = function(q, run) return G.once(run, 'policy', read_policy, q) end

local function read_of_worker(_, q, consumer)
  local text = consumer ~= '' and G.pcall('HGET', q.stalled_policies, consumer)
  local max_stalled, grace = G.match(text, '^(%d*)|(%d*)|%d+$')
  return { max_stalled = number(max_stalled, 0, COUNT_MAX), grace = number(grace, 0, G.DAY_MS) }
end
local function of_worker(q, run, consumer) return G.once(run, 'policy of ' .. consumer, read_of_worker, q, consumer) end

-- Return how often a job of this worker may stall. consumer: '' for a lease. run.max_stalled: of the caller.
S.max_stalled = function(q, run, consumer)
  return of_worker(q, run, consumer).max_stalled or S.of_queue(q, run).max_stalled or run.max_stalled
end

-- Return the time after the end of the lock until a job of this worker counts as stalled, ms.
S.grace = function(q, run, consumer)
  return of_worker(q, run, consumer).grace or S.of_queue(q, run).grace or run.grace or 0
end

-- Store what the registration of a worker sets. info: its JSON.
S.register = function(q, consumer, info, now_text)
  local policy = string.match(info, '"stalledPolicy":%s*"(%d*|%d*)"')
  if not policy then return end
  local entry = policy .. '|' .. now_text
  -- A key of another type must not stop the heartbeat, which renews the locks of the worker's jobs.
  if type(G.pcall('HSET', q.stalled_policies, consumer, entry)) ~= 'number' then
    redis.call('UNLINK', q.stalled_policies)
    redis.call('HSET', q.stalled_policies, consumer, entry)
  end
end

S.forget = function(q, consumer) G.pcall('HDEL', q.stalled_policies, consumer) end

-- Delete the policies of workers that died long ago: a few random ones at a time.
S.sweep = function(q, now)
  local names = G.pcall('HRANDFIELD', q.stalled_policies, SWEEP_SAMPLE)
  for i = 1, math.min(#names, SWEEP_SAMPLE) do
    local at = number(string.match(redis.call('HGET', q.stalled_policies, names[i]), '|(%d+)$'), 0, now) or 0
    if at < now - FORGET_MS and not G.is_registered(q, names[i]) then S.forget(q, names[i]) end
  end
end

-- Return the lock duration of a worker. Each worker registers its own (`lockDuration` in `w:<consumer>`), since
-- workers of one queue may be configured differently.

local function read_lock(run, q, consumer)
  local own = G.count_of(G.match(G.pcall('GET', q.P .. 'w:' .. consumer), '"lockDuration":%s*(%d+)'))
  return own > 0 and own <= G.DAY_MS and own or run.lock
end

-- run: {lock = the caller's lock duration, for workers that register none: peers, older versions}; caches the durations
-- read.
G.lock_of_worker = function(q, run, consumer) return G.once(run, 'lock of ' .. consumer, read_lock, q, consumer) end
