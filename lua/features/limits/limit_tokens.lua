-- Count the tokens reported by jobs, in windows of fixed length: one counter per window, which expires by itself. A
-- worker with a token limit checks the counter before it fetches, and adds its jobs' tokens when they end.

local function counter(q, duration, now)
  return q.P .. 'tpm:' .. G.int(math.floor(now / duration))
end

-- tokens: one number per finished row. Rows already reported by an earlier call are not counted again.
G.count_tokens = function(q, duration, now, tokens, statuses)
  local sum = 0
  for i = 1, #statuses do
    local status = statuses[i]
    if status ~= G.ALREADY and status ~= G.GONE and status ~= G.STALE then sum = sum + G.num(tokens[i]) end
  end
  if sum == 0 then return end
  local key = counter(q, duration, now)
  local counted = G.pcall('INCRBY', key, G.int(sum))
  if counted == sum then G.record_temporary(q, string.sub(key, #q.P + 1), now, duration) end
  if G.must_restart(counted) then redis.call('SET', key, G.int(sum)) end
  redis.call('PEXPIRE', key, G.int(duration))
end

-- Return ms until the next window if this one has no tokens left, else nil.
G.tokens_spent = function(q, max, duration, now)
  if G.num(redis.call('GET', counter(q, duration, now)) or '') < max then return nil end
  return duration - now % duration
end
