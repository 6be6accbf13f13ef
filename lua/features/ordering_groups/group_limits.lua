-- Groups whose rate limit ends: `ratelimited` has the time of each.
local SCORED = G.rows.scored
local M = G.groups

local GROUPS_MAX = 100

-- Return milliseconds until the rate limit of a group ends (0 = now), or -1.
M.next_limited = function(q, now)
  local head = redis.call('ZRANGE', q.ratelimited, 0, 0, 'WITHSCORES')
  local score = head[SCORED.score]
  return score and math.max(0, G.clamped_time(score) - now) or -1
end

-- Add groups whose rate limit has ended to the ready groups. Return the value of next_limited.
M.end_limits = function(q, fetching)
  local wait = M.next_limited(q, fetching.now)
  if wait < 0 then return wait end
  G.repair_times(q.ratelimited, G.TIME_MAX, 0)
  wait = M.next_limited(q, fetching.now)
  if wait ~= 0 then return wait end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', q.ratelimited, '-inf', fetching.now_text, 'LIMIT', 0, GROUPS_MAX)) do
    redis.call('ZREM', q.ratelimited, name)
    -- it may be listed because more sequences were to be skipped than one call does
    M.skip_marked(M.group(q, name))
    G.add_ready_group(fetching, name)
  end
  return M.next_limited(q, fetching.now)
end
