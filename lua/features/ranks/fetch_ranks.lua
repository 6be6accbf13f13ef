-- Fetch jobs with a rank above 2047, or below 0 (sources of core/fetch.lua).

local R = G.ranks

local function source(field)
  return function(q, fetching, free)
    local budget = free + G.REJECTIONS_MAX
    for _ = 1, budget do
      if free <= 0 or budget <= 0 or fetching.bytes >= G.REPLY_BYTES then return false end
      local limit = math.min(free, G.STREAM_PAGE)
      local members = redis.call('ZRANGE', q[field], 0, limit - 1)
      if #members == 0 then return true end
      redis.call('ZREM', q[field], unpack(members)) -- a command per page, as the lists are popped
      for i = 1, #members do
        local id = R.id_of(members[i])
        if id and G.activate(q, fetching, id, '') then free = free - 1 end
        budget = budget - 1
      end
    end
    return false
  end
end

G.sources.ranked_above = source('ranked_above')
G.sources.ranked_below = source('ranked_below')
