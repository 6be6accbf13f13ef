-- exchange: hand in what is finished, promote what is due, take what is ready. The one call a worker lives on.
-- KEYS 1 meta   ARGV 1 packed {consumer, want, finished, quiet, no_metrics, limiter, tokens, idle, charges, held}
-- -> packed {now, statuses, jobs, next_due, flags, dropped, budgets}   want: at most WANT_MAX are taken in one call
--   statuses: one a finished row, see core/finish.lua      jobs: see core/fetch.lua
--   next_due: ms until there may be more to take, or -1      limiter: {max, duration ms} or false
--   flags: 1 = paused, 2 = nothing ready was left, 4 = a limit of the queue allowed less than wanted, 8 = the outbox has
--     entries, of this call or of another; from 65536 on: the revision of the schedulers (schedulers/schedules.lua),
--     if there is one
--   tokens: absent, or {max, duration ms, tokens that each finished job has reported}, see features/limits/limit_tokens.lua
--   idle: the token of a call that stood behind a blocking read (functions.md, "Waking"): retired, it takes nothing
--   dropped: {stream entry id or '', job id, reason} of what was set aside on the way
--   charges: absent, or what finished jobs have used of their flow's budget, see features/budgets/budget.lua
--   held: false, or what the worker has in hand: {jobs, suspects, smallest limit of these}, see stalled_jobs/suspects.lua
--   budgets: absent, or {verdicts by job id, or false; rows that passed a limit}, see features/budgets/budget.lua

local PROMOTE_MAX = 200
local WANT_MAX = 1000 -- what one call may spread over the arguments of a command
local PAUSED, EXHAUSTED, LIMITED, OUTBOX_PENDING = 1, 2, 4, 8

local function earlier(a, b)
  if a < 0 or (b >= 0 and b < a) then return b end
  return a
end

-- Returns the flags.
local function take(q, fetching, want, limiter, tokens)
  local limits = G.limits(q, fetching, want, limiter, tokens)
  local flags = 0
  if limits.paused then
    flags = PAUSED
  elseif limits.want > 0 then
    if G.fetch(q, fetching, limits.want) then flags = EXHAUSTED end
    G.spend(q, limits, #fetching.jobs)
  end
  if flags == 0 and limits.limited and #fetching.jobs == limits.want then flags = LIMITED end
  -- Whoever can take nothing now sleeps until something new is pushed.
  if flags ~= 0 and #fetching.jobs == 0 then G.forget_old_wakes(q) end
  return flags
end

-- Whether all jobs stand in the stream, and whether the outbox has entries. Most queues have nothing but stream jobs:
-- one look instead of one at each of the other places.
local function look_around(q)
  local places = redis.call('EXISTS', q.scheduled, q.lifo, q.priority, q.ratelimited, q.suspects,
    q.suspect_host, q.outbox)
  if places == 0 then return true, false end
  local outbox = redis.call('EXISTS', q.outbox)
  local entries = outbox == 1 and redis.pcall('XLEN', q.outbox)
  return places == outbox, type(entries) == 'number' and entries > 0
end

local function run(q, fetching, request, want)
  local finished, quiet = request[3], request[4]
  local statuses, tokens = G.finish(q, fetching, finished, quiet, request[5]), request[7]
  if tokens then G.count_tokens(q, tokens[2], fetching.now, tokens[3], statuses) end
  local passed = request[9] and G.budgets.settle(q, request[9], finished, statuses)
  local next_due, flags = -1, 0
  local stream_only, outbox_has_entries = look_around(q)
  fetching.stream_only = stream_only
  if not fetching.stream_only then
    next_due = earlier(G.promote_due(q, fetching.now, PROMOTE_MAX, quiet), G.due_groups(q, fetching))
  end
  if want > 0 then
    flags = take(q, fetching, want, request[6], tokens)
  elseif #finished > 0 and redis.call('HEXISTS', q.meta, 'globalConcurrency') == 1 then
    G.wake(q, 1) -- a place is free, and this worker does not want it
  elseif not fetching.stream_only and G.priority_is_due(q, fetching.now) then
    G.wake(q, 1) -- such a job stays where it is: whoever has a slot takes it from there
  end
  G.kick_groups(q, fetching)
  if fetching.parked then next_due = earlier(next_due, G.next_group(q, fetching.now)) end
  if outbox_has_entries or G.outbox_pending(q) then flags = flags + OUTBOX_PENDING end
  flags = flags + (rawget(q, 'schedules_flag') or 0)
  return cmsgpack.pack({
    fetching.now, statuses, fetching.jobs, earlier(next_due, fetching.next_due), flags, fetching.dropped,
    G.budgets.told(fetching, passed),
  })
end

G.export('exchange', { 'allow-oom' }, function(keys, args)
  local q, request = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local fetching, want = G.fetching(q, G.now(q), request[1], request[4]), math.min(request[2], WANT_MAX)
  if request[8] and redis.call('ZSCORE', q.retired, request[8]) then want = 0 end
  fetching.held = request[10] or nil
  q.defer = true
  rawset(q, 'fetching', fetching)
  local ok, reply = pcall(run, q, fetching, request, want)
  -- What the call did to groups is written once each, and also where it fails half-way.
  G.groups.flush(q)
  if not ok then error(reply, 0) end
  return reply
end)
