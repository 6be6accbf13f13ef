-- Trading of the shares that partitions have in the concurrency of the whole queue. A round has three steps: open it at
-- partition 0, fence all others, set shares. A partition obeys the last round that has fenced it, so a round that was
-- overtaken by another one, or whose process has stopped, changes nothing any more.
--
-- open_share_round: begin a round, and fence partition 0.
--   KEYS 1 meta (of partition 0)   ARGV 1 packed {number, limit, ttl, pause, above}
--   -> packed {epoch or 0, limit, ms until it ends or -1, wait, share, ends in, active, ready}
--   number: of the layout that the caller knows   limit: set it as the limit of the whole queue, 0 = no limit; false =
--   unchanged   ttl: ms until the limit that applied before applies again, 0 = never
--   pause: least ms since the last round, if no limit is set   epoch: number of the round, larger than `above`
--   epoch 0: there is no limit (wait -1), or the last round was less than `pause` ago: try again in `wait` ms
--   share: 0 = none, -1 = no limit   ends in: ms until the share ends, -1 = never   ready: jobs that could start
--   errors: ERR layout (the queue has another one)
-- fence_share: let a further partition take part in a round.
--   KEYS 1 meta   ARGV 1 packed {epoch}   -> packed {epoch, share, ends in, active, ready}
--   The reply has another epoch, and nothing was changed, if the partition has taken part in this or a later round; 0 if
--   it is no partition any more.
-- set_share: set the share of a partition.
--   KEYS 1 meta   ARGV 1 packed {epoch, before, share, ends in}   -> packed {epoch, active, ready}
--   before: the share that the caller has read. The reply has another epoch, and nothing was changed, if the partition
--   has taken part in a later round; 0 if its share is neither `before` nor `share`.
-- Bound: constant, and 256 priorities for the number of ready jobs.

local S, M = G.shares, G.moving

local function end_of(now, ttl) return ttl > 0 and now + ttl or 0 end

-- Return the reply with the state of a partition.
local function with_state(q, reply, now)
  reply.share, reply.ends_in = S.share(q, now)
  reply.active, reply.ready = S.demand(q)
  return reply
end

local function not_opened(wait)
  return G.replies.open_share_round({
    epoch = 0, limit = 0, left = -1, wait = wait, share = 0, ends_in = -1, active = 0, ready = 0,
  })
end

local function set_total(q, total, limit, ttl, now)
  if not total then
    S.adopt(q, now)
    total = S.total(q, now) or { limit = 0, till = 0, before = 0 }
  end
  if total.till == 0 then total.before = total.limit end
  total.limit, total.till = limit, end_of(now, ttl)
  S.write_total(q, total)
  return total
end

G.export('open_share_round', { 'allow-oom' }, function(q, r)
  local refused = M.check(q, r.number)
  if refused then return refused end
  local now, last = G.now(q), S.round(q)
  local total, since = S.total(q, now), now - last
  if r.limit then
    total = set_total(q, total, r.limit, r.ttl, now)
  elseif not total then
    return not_opened(-1)
  elseif since >= 0 and since < r.pause then
    return not_opened(r.pause - since)
  end
  local round = math.max(last + 1, r.above + 1, now)
  redis.call('HSET', q.meta, S.ROUND, G.int(round))
  return G.replies.open_share_round(with_state(q, {
    epoch = round, limit = total.limit, left = total.till > 0 and total.till - now or -1, wait = 0,
  }, now))
end)

G.export('fence_share', { 'allow-oom' }, function(q, r)
  local reply = { epoch = 0, share = 0, ends_in = -1, active = 0, ready = 0 }
  if M.number(q) == 0 then return G.replies.fence_share(reply) end
  local last = S.round(q)
  reply.epoch = last
  if last >= r.epoch then
    if last == r.epoch then reply.epoch = last + 1 end -- another round had the same number
    return G.replies.fence_share(reply)
  end
  redis.call('HSET', q.meta, S.ROUND, G.int(r.epoch))
  reply.epoch = r.epoch
  return G.replies.fence_share(with_state(q, reply, G.now(q)))
end)

G.export('set_share', { 'allow-oom' }, function(q, r)
  local now, last = G.now(q), S.round(q)
  local share = S.share(q, now)
  if last ~= r.epoch or (share ~= r.before and share ~= r.share) then
    return G.replies.set_share({ epoch = last ~= r.epoch and last or 0, active = 0, ready = 0 })
  end
  S.write_share(q, r.share, r.ends_in, now)
  S.wake_for(q, share, r.share)
  local active, ready = S.demand(q)
  return G.replies.set_share({ epoch = last, active = active, ready = ready })
end)
