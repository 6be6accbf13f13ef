-- exchange: hand in what is finished, promote what is due, take what is ready. The one call a worker lives on.
-- KEYS 1 meta   ARGV 1 packed {consumer, want, finished, quiet, no_metrics}
-- -> packed {now, statuses, jobs, next_due, flags, dropped}        want: at most WANT_MAX are taken in one call
--   statuses: one a finished row, see shared/finish.lua      jobs: see shared/take.lua
--   next_due: ms until the next scheduled job is due, or -1  flags: 1 = paused, 2 = nothing ready was left
--   dropped: {stream entry id or '', job id, reason} of what was set aside on the way

local PROMOTE_MAX = 200
local WANT_MAX = 1000 -- what one call may spread over the arguments of a command
local PAUSED, EXHAUSTED = 1, 2

G.export('exchange', { 'allow-oom' }, function(keys, args)
  local q, request = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local consumer, want, quiet = request[1], math.min(request[2], WANT_MAX), request[4]
  local now = G.now(q)
  local statuses = G.finish(q, now, request[3], quiet, request[5])
  local next_due = G.promote_due(q, now, PROMOTE_MAX, quiet)
  local taking = G.taking(q, now, consumer, quiet)
  local flags = 0
  if redis.call('HGET', q.meta, 'paused') == '1' then
    flags = PAUSED
    if want > 0 then G.forget_old_wakes(q) end
  elseif want > 0 then
    if G.take(q, taking, want) then
      flags = EXHAUSTED
      G.forget_old_wakes(q)
    end
    if taking.next_due >= 0 and (next_due < 0 or taking.next_due < next_due) then next_due = taking.next_due end
  end
  return cmsgpack.pack({ now, statuses, taking.jobs, next_due, flags, taking.dropped })
end)
