-- glidemq_addJob: add a job.
-- KEYS 1 id, 2 stream, 3 scheduled, 4 events, 5 deps of a parent in the same slot (optional)
--   ARGV 1 name, 2 data, 3 opts JSON, 4 timestamp ms, 5 delay ms, 6 priority, 7 parent id, 8 max attempts, 9 ordering
--   key, 10 group concurrency (0 = 1), 11 rate max, 12 rate duration ms, 13 bucket capacity mtok, 14 bucket refill
--   mtok/s, 15 cost mtok, 16 ttl ms, 17 custom id, 18 lifo 0/1, 19 parent queue, 20 scheduler name, 21 skip events 0/1
--   -> id | 'duplicate' | 'ERR:COST_EXCEEDS_CAPACITY' | 'ERR:ID_EXHAUSTED'
--   errors: OOM (not allow-oom: a full server rejects new jobs)
-- glidemq_dedup: add a job unless it is a duplicate.
-- KEYS 1 dedup, 2 id, 3 stream, 4 scheduled, 5 events, 6 parent deps (optional)
--   ARGV 1 dedup id, 2 ttl ms, 3 simple | throttle | debounce (else: no check), 4..17 as addJob's 1..6, 7, 8, 9..14, 18
--   cost, 19 ttl, 20 custom id, 21 lifo, 22 parent queue, 23 skip events
--   -> 'skipped' | what addJob returns
-- Bound: constant.
local W = G.W

local function spec(keys, first_key, A, at)
  return W.spec({
    name = A[at], data = A[at + 1], opts = A[at + 2], timestamp = A[at + 3], delay = A[at + 4], priority = A[at + 5],
    parent_id = A[at + 6], max_attempts = A[at + 7], group = A[at + 8], concurrency = A[at + 9],
    rate_max = A[at + 10], rate_duration = A[at + 11], tb_capacity = A[at + 12], tb_rate = A[at + 13],
    cost = A[at + 14], ttl = A[at + 15], id = A[at + 16], lifo = A[at + 17], parent_queue = A[at + 18],
    deps_key = keys[first_key + 4],
  })
end

G.export('addJob', {}, function(keys, args)
  local s = spec(keys, 1, args, 1)
  s.scheduler, s.quiet = G.given(args[20]), args[21] == '1'
  return W.add(W.queue(keys[1], 'id'), s)
end)

G.export('dedup', {}, function(keys, args)
  local q, s = W.queue(keys[2], 'id'), spec(keys, 2, args, 4)
  s.quiet = args[23] == '1'
  if W.too_costly(s) then return 'ERR:COST_EXCEEDS_CAPACITY' end
  -- The protocol uses the time to live in one mode only.
  local ttl = args[3] == 'throttle' and G.num(args[2]) or 0
  if G.deduplicate(q, args[1], args[3], ttl, s.timestamp, s.quiet) == 'skipped' then return 'skipped' end
  local id = W.add(q, s)
  if id ~= 'duplicate' and string.sub(id, 1, 4) ~= 'ERR:' then
    redis.call('HSET', keys[1], args[1], id .. ':' .. s.timestamp_text)
  end
  return id
end)
